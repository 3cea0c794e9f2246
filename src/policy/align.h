// SPDX-License-Identifier: Apache-2.0
// These functions rename a proposal's ranks and slots so that it moves as few weights as possible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/policy.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

// current, proposal and what is returned are placements of one layer: [slots].

// Gives the proposal's ranks new names so that the fewest (rank, expert) weights are missing from
// `current`; only ranks with equally many slots are exchanged, and nodes only as a whole.
std::vector<int32_t> align_ranks(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal, SlotRanges slots,
                                 int num_experts, const Topology& topology);

// Reorders the slots of each rank: an expert that stays keeps its slot, new ones fill the others in
// ascending order.
std::vector<int32_t> align_slots(std::span<const int32_t> current,
                                 std::span<const int32_t> proposal, SlotRanges slots);

}  // namespace trimtab
