// SPDX-License-Identifier: Apache-2.0
// A lower bound on the peak rank load where no rank has more than two slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// A layer as the searches for bounds see it: names of experts and ranks do not matter.
struct BoundedLayer {
  std::vector<double> load;  // [experts], descending, >= 0; at least one is above 0
  std::vector<int> slots;    // [ranks with slots] of each, descending
  int64_t num_slots = 0;     // the sum of `slots`, at least the number of experts

  int64_t num_ranks() const { return std::ssize(slots); }
};

// A peak that no placement in which no rank holds an expert twice goes below, at least `low`, which
// is one already. It stops at `high`, a peak that is known to be reached. Tokens are shared equally
// among the replicas of an expert. slots: 1 or 2 on each rank.
//
// The proof for a peak B. Let the experts have c_e replicas of size w_e / c_e. Of two replicas
// which share a rank, at most one is larger than B / 2, and if it is larger than t, the other is at
// most B - t. So for every t >= B / 2 there are as many replicas of at most B - t as there are
// larger than t, less those that have a rank of one slot to themselves. Take any weights
// lambda_t >= 0 and let f(s) be the sum of lambda_t over the t below s, for s > B / 2, and minus
// the sum over the t with s <= B - t, for the others. Then the sum of f over all replicas is at
// most the number of ranks of one slot times the sum of lambda. With any price mu of a slot, the
// sum over the experts of the least of c (f(w_e / c) + mu) over c, less mu times the number of
// slots, is at most the same. Where lambda and mu break that, no placement has peak B. They are
// sought by a subgradient method (the thresholds are those just below large replicas, at most 96,
// the step is Polyak's, f is kept monotone by pooling neighbours), and what is found is checked in
// full. It is the dual of the linear program over the numbers of replicas with all thresholds.
double pair_bound(const BoundedLayer& layer, double low, double high);

}  // namespace trimtab
