// SPDX-License-Identifier: Apache-2.0
// Lower bounds on the peak rank load that any placement with the same slots can reach.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

struct PeakBounds {
  // For placements in which no rank holds an expert twice, with the tokens of an expert shared
  // equally among its slots. An expert twice on a rank may lower the peak further: it has more of
  // its tokens there.
  double equal = 0;
  // For every placement, with the tokens of an expert shared in any way among its slots.
  double exact = 0;
};

// expert_load: [experts], >= 0; slots_per_rank from first_slots: [ranks + 1]. In tokens, like
// expert_load.
//
// exact: the mean, and the least B for which ceil(w_e / B) slots for every expert e (at least one,
// on different ranks) fit into all slots: an expert with c slots has a rank with at least w_e / c
// of its tokens. equal: the same and, where every rank has two slots: for every t >= B / 2,
// replicas larger than t cannot meet, so there must be as many others of at most B - t to share
// their ranks. Replicas that satisfy this for one t are sought by Lagrangian relaxation; if even
// that finds none, no peak of B is possible. O(E) times a constant of some thousands.
PeakBounds peak_bounds(std::span<const int64_t> expert_load, std::span<const int32_t> first_slots);

}  // namespace trimtab
