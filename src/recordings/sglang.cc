// SPDX-License-Identifier: Apache-2.0
// What SGLang's --init-expert-location takes and, as JSON, what its recorder dumps in mode stat: an
// object with either logical_count or physical_to_logical_map.
#include <limits>
#include <optional>

#include "base/cat.h"
#include "recordings/readers.h"
#include "recordings/tables.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// The wanted table; the other one must not be there.
IntTable read_one_table(std::string_view text, const std::string& file, bool loads) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  JsonReader json(text, file);
  std::optional<IntTable> table;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    const bool counts = key == "logical_count";
    if (counts || key == "physical_to_logical_map") {
      if (counts != loads) {
        json.fail(json.offset(), counts ? "logical_count: these are loads, no placement"
                                        : "physical_to_logical_map: this is a placement, no loads");
      }
      table = read_table(json, key, 2, loads ? 3 : 2, loads ? kMax : kMaxExperts - 1);
    } else {
      json.skip_value();  // rank, average_utilization_rate_over_window and what later versions add
    }
  }
  json.end();
  if (!table)
    throw FormatError(file, 0, cat("no key ", loads ? "logical_count" : "physical_to_logical_map"));
  return std::move(*table);
}

}  // namespace

Recording read_sglang_loads(std::string_view text, const std::string& file,
                            const RecordingOptions& options) {
  IntTable table = read_one_table(text, file, true);
  return dense_recording(file, table.shape, std::move(table.values), options);
}

std::string sglang_loads(const Recording& recording) {
  const Load& load = recording.load;
  std::string out = "{\"rank\": 0, \"logical_count\": [";
  const auto step_size = cells(load.num_layers, load.num_experts);
  for (size_t step = 0; step < static_cast<size_t>(load.num_steps); ++step) {
    if (step > 0) out += ",\n ";
    append_rows(out, std::span(load.counts).subspan(step * step_size, step_size), load.num_layers);
  }
  return out + "], \"average_utilization_rate_over_window\": null}\n";
}

PlacementFile read_sglang_placement(std::string_view text, const std::string& file,
                                    const PlacementOptions& options) {
  IntTable table = read_one_table(text, file, false);
  const auto layers = static_cast<size_t>(table.shape[0]);
  std::vector<int> slots = slots_per_rank(file, table.shape[1], options);
  return make_placement(
      file, {layers, std::move(table.values), std::move(table.row_at), counted_layers(layers)},
      std::move(slots), 0, options);
}

std::string sglang_placement(const PlacementFile& file) {
  equal_slots(file.placement, "SGLang");
  std::string out = "{\"physical_to_logical_map\": ";
  append_rows<int32_t>(out, all_slots(file.placement), file.placement.num_layers());
  return out + "}\n";
}

}  // namespace trimtab
