// SPDX-License-Identifier: Apache-2.0
// These functions hold a finished proposal to the limits of a problem, for policies that do not
// search within them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/policy.h"

namespace trimtab {

// Returns the number of experts that each rank receives when the placement `from` of a layer
// becomes `to`, both [slots]: [ranks]. A rank that gets several slots of one expert receives it
// once. With R ranks of S slots this takes O(R S^2).
std::vector<int64_t> received(std::span<const int32_t> from, std::span<const int32_t> to,
                              std::span<const int32_t> first_slots);

// Goes from `current` towards `proposal` (both [slots]) as far as max_moves weights over the layer
// and max_receive per rank allow, in steps that keep every expert in place somewhere, each chosen
// to lower the peak load the most. Returns the best placement on the way, or `proposal` itself when
// the limits allow it: [slots].
std::vector<int32_t> within_move_limits(std::span<const int32_t> current,
                                        std::span<const int32_t> proposal,
                                        std::span<const int32_t> first_slots,
                                        std::span<const int64_t> expert_load, int64_t max_moves,
                                        int64_t max_receive);

// Goes the same way, and returns every placement on it, up to `proposal` itself where the limits
// allow it. Each has other moves than the one before. With R ranks, S slots on each and P of all
// slots differing, a step tries at most P slots and each try takes O(R) and the replicas that it
// concerns.
std::vector<std::vector<int32_t>> placements_between(std::span<const int32_t> current,
                                                     std::span<const int32_t> proposal,
                                                     std::span<const int32_t> first_slots,
                                                     std::span<const int64_t> expert_load,
                                                     int64_t max_moves, int64_t max_receive);

}  // namespace trimtab
