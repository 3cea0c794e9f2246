// SPDX-License-Identifier: Apache-2.0
// Placements that do not look at loads. They serve as starts, and others are compared with them.
#pragma once

#include <cstdint>
#include <vector>

#include "trimtab/slot_ranges.h"

namespace trimtab {

// All return a placement of one layer: [slots]. There must be at least as many slots as experts.

// Experts 0, 1, ... in slot order, again from 0 when all have a slot: the placement that vLLM and
// its relatives start with.
std::vector<int32_t> linear_placement(int num_experts, SlotRanges slots);

// Deals the experts 0, 1, ... to the ranks in turn, then those with the fewest replicas (the lowest
// of them), passing over experts that the rank has. No rank gets an expert twice unless it has more
// slots than there are experts.
std::vector<int32_t> round_robin_placement(int num_experts, SlotRanges slots);

// Any placement in which every expert has a slot and no rank holds an expert twice (as above); the
// same for the same seed. For tests.
std::vector<int32_t> random_placement(int num_experts, SlotRanges slots, uint64_t seed);

}  // namespace trimtab
