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
// expert_load. The same layer gives the same bounds, whatever was planned.
//
// exact: the mean, and the least B for which ceil(w_e / B) slots for every expert e (at least one,
// on different ranks) fit into all slots: an expert with c slots has a rank with at least w_e / c
// of its tokens. O(E) times a constant of some tens.
//
// equal: the same, raised where that is possible (the headers below have the proofs):
// - Ranks of at most two slots: pair_bound.h, a linear program's dual. O(E + slots) times a
//   constant of some thousands.
// - At most 24 experts in 64 slots: small_bound.h, an exhaustive search of bounded length. It ends
//   with the optimum for most layers of up to ten experts.
// Where a greedy placement is within 0.05 % of the bound, neither is needed. Large layers with more
// slots a rank keep `exact`: there the plans of trim are within 0.3 % of it. A layer in which a
// rank has more slots than there are experts keeps it too.
PeakBounds peak_bounds(std::span<const int64_t> expert_load, std::span<const int32_t> first_slots);

}  // namespace trimtab
