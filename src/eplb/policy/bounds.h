// SPDX-License-Identifier: Apache-2.0
// Lower bounds on the peak rank load that no placement with the same slots can beat.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

struct PeakBounds {
  double equal = 0;  // tokens of an expert shared equally among its slots
  double exact = 0;  // tokens shared freely among its slots
};

// expert_load: [experts], >= 0; slots_per_rank from first_slots: [ranks + 1]. In tokens, like expert_load.
//
// exact: the mean, and the least B for which ceil(w_e / B) slots for every expert e (at least one, on different ranks)
// fit into all slots: an expert with c slots has a rank with at least w_e / c of its tokens.
// equal: the same and, where every rank has two slots, that at most as many replicas can be larger than t as others are
// small enough to share a rank with them (at most B - t), for every t >= B / 2; see bounds.cc.
PeakBounds peak_bounds(std::span<const int64_t> expert_load, std::span<const int32_t> first_slots);

}  // namespace trimtab
