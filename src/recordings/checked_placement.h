// SPDX-License-Identifier: Apache-2.0
// The last step of every reader of placements: the checks that hold for all formats.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recordings/json_table.h"
#include "trimtab/recordings.h"

namespace trimtab {

// The rows of a placement before they are checked.
struct SlotTable {
  int64_t num_layers = 0;
  std::vector<int64_t> logical;   // [layers, slots]
  std::vector<int64_t> layer_at;  // [layers]: the byte of each layer, for errors
  std::vector<int> layer_ids;     // [layers]
};
// The rows of a JSON table [layers, slots]. layer_ids: 0, 1, ... when empty. Throws FormatError
// when there are not as many of them as layers.
SlotTable slot_table(const std::string& file, IntTable table, std::vector<int> layer_ids = {});

// The slots of each rank, from the options, for a file that does not tell them. Throws
// InvalidArgument when the options do not say it.
std::vector<int> slots_per_rank(const std::string& file, int64_t slots,
                                const PlacementOptions& options);
// Throws InvalidArgument when the options name other ranks than the file does.
void check_ranks(const std::string& file, const std::vector<int>& slots_per_rank,
                 const PlacementOptions& options);

// file_experts: the number of experts that the file states, 0 when it states none. Throws
// FormatError and InvalidArgument as parse_placement() says.
PlacementFile make_placement(const std::string& file, SlotTable table,
                             std::vector<int> slots_per_rank, int64_t file_experts,
                             const PlacementOptions& options);

// The slots of every rank. Throws InvalidArgument, naming the format, when they differ.
int equal_slots(const Placement& placement, std::string_view format);
// [layers, slots]
Table<const int32_t> slot_rows(const Placement& placement);
// Throws InvalidArgument when there are not as many layer ids as layers.
void check_writable(const PlacementFile& placement);

}  // namespace trimtab
