// SPDX-License-Identifier: Apache-2.0
// The JSON that SGLang's --init-expert-location takes: an object with either logical_count or
// physical_to_logical_map. Its recorder dumps the first, in mode stat.
#include <optional>

#include "base/cat.h"
#include "recordings/checked_placement.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/json_table.h"
#include "recordings/readers.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Reads the wanted table and refuses a file that has the other one.
IntTable read_one_table(const Content& content, bool loads) {
  JsonReader json(content.text(), content.file());
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
      table = read_table(json, key, 2, loads ? 3 : 2, loads ? kMaxCount : kMaxExpertId);
    } else {
      json.skip_value();  // rank, average_utilization_rate_over_window and what later versions add
    }
  }
  json.end();
  if (!table)
    throw FormatError(content.file(), 0,
                      cat("no key ", loads ? "logical_count" : "physical_to_logical_map"));
  return std::move(*table);
}

}  // namespace

Recording read_sglang_loads(const Content& content, const RecordingOptions& options) {
  IntTable table = read_one_table(content, true);
  return dense_recording(content.file(), table.shape, std::move(table.values), options);
}

std::string sglang_loads(const Recording& recording) {
  return "{\"rank\": 0, \"logical_count\": [" + step_rows(recording.load) +
         "], \"average_utilization_rate_over_window\": null}\n";
}

PlacementFile read_sglang_placement(const Content& content, const PlacementOptions& options) {
  IntTable table = read_one_table(content, false);
  std::vector<int> slots = slots_per_rank(content.file(), table.shape[1], options);
  return make_placement(content.file(), slot_table(content.file(), std::move(table)),
                        std::move(slots), 0, options);
}

std::string sglang_placement(const PlacementFile& file) {
  equal_slots(file.placement, "SGLang");
  if (file.layer_ids != counted_ids<int>(std::ssize(file.layer_ids))) {
    throw InvalidArgument(
        cat("SGLang takes row 0 for layer 0 of the model, and so on; this placement "
            "begins with layer ",
            file.layer_ids.front(), " or has gaps"));
  }
  std::string out = "{\"physical_to_logical_map\": ";
  append_rows(out, slot_rows(file.placement));
  return out + "}\n";
}

}  // namespace trimtab
