// SPDX-License-Identifier: Apache-2.0
// A placement as the record of vLLM's offline EPLB from which the engine starts.
#include "base/quoted.h"
#include "recordings/checked_placement.h"
#include "recordings/ids.h"
#include "recordings/readers.h"
#include "recordings/vllm_records.h"

namespace trimtab {

PlacementFile read_vllm_placement(const Content& content, const PlacementOptions& options) {
  const std::string& file = content.file();
  VllmRecordReader reader(content);
  SlotTable table;
  int64_t num_slots = 0;
  int64_t redundant = 0;
  while (reader.next()) {
    if (reader.record.type != "eplb_initial_mapping") {
      reader.fail(
          cat("record_type ", json_quoted(reader.record.type), "; eplb_initial_mapping expected"));
    }
    if (table.num_layers > 0) reader.fail("a second eplb_initial_mapping");
    if (!reader.number("num_slots")) reader.fail("no num_slots");
    if (!reader.number("num_redundant_experts")) reader.fail("no num_redundant_experts");
    num_slots = *reader.number("num_slots");
    redundant = *reader.number("num_redundant_experts");
    table.num_layers = std::ssize(reader.record.assignments);
    if (table.num_layers == 0) reader.fail("no initial_global_assignments");
    if (num_slots < 1 || num_slots > kMaxExperts || redundant < 0 || redundant >= num_slots) {
      reader.fail(cat("num_slots ", num_slots, ", num_redundant_experts ", redundant));
    }
    for (const auto& [layer, row] : reader.record.assignments) {
      if (std::ssize(row.values) != num_slots) {
        throw FormatError(
            file, row.at,
            cat("layer ", layer, ": ", row.values.size(), " slots; num_slots is ", num_slots));
      }
      table.logical.insert(table.logical.end(), row.values.begin(), row.values.end());
      table.layer_at.push_back(row.at);
    }
  }
  if (table.num_layers == 0) throw FormatError(file, -1, "no eplb_initial_mapping record");
  table.layer_ids = counted_ids<int>(table.num_layers);
  std::vector<int> slots = slots_per_rank(file, num_slots, options);
  return make_placement(file, std::move(table), std::move(slots), num_slots - redundant, options);
}

std::string vllm_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  equal_slots(placement, "vLLM");
  std::string out =
      cat("{\"record_type\": \"eplb_initial_mapping\", \"version\": 1, \"num_redundant_experts\": ",
          placement.num_slots() - placement.num_experts(),
          ", \"num_slots\": ", placement.num_slots(), ", \"initial_global_assignments\": {");
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    out += cat(layer > 0 ? ", " : "", "\"", layer, "\": ");
    append_list(out, placement.logical(layer));
  }
  return out + "}}\n";
}

}  // namespace trimtab
