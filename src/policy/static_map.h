// SPDX-License-Identifier: Apache-2.0
// Maps that do not look at loads: where one starts from, and what others are compared with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// All return one layer's map, [slots]; first_slots: [ranks + 1], at least as many slots as experts.

// Experts 0, 1, ... in slot order, again from 0 when all have a slot: the map that vLLM and its kin
// start with.
std::vector<int32_t> linear_map(int num_experts, std::span<const int32_t> first_slots);

// Deals the experts 0, 1, ... to the ranks in turn, then those with the fewest copies (the lowest
// of them), passing over experts that the rank has. No rank gets an expert twice unless it has more
// slots than there are experts.
std::vector<int32_t> round_robin_map(int num_experts, std::span<const int32_t> first_slots);

// Any map in which every expert has a slot and no rank holds an expert twice (as above); the same
// for the same seed. For tests.
std::vector<int32_t> random_map(int num_experts, std::span<const int32_t> first_slots,
                                uint64_t seed);

}  // namespace trimtab
