// SPDX-License-Identifier: Apache-2.0
// A lower bound on the peak rank load of a small layer, by exhaustive search.
#pragma once

#include <cstdint>

#include "policy/pair_bound.h"

namespace trimtab {

// The peak of a placement without duplicates that the greedy packing finds: replicas go to the
// experts with the largest ones, and then by falling size to the rank with the least load. Infinity
// where it gets stuck. O(slots x (experts + ranks)).
double greedy_peak(const BoundedLayer& layer);

// A peak that no placement in which no rank holds an expert twice goes below, at least `low`, which
// is one already; the least peak where the search comes to its end. `high` is a peak that is known
// to be reached, or infinity. No rank may have more slots than there are experts. Tokens are shared
// equally among the replicas of an expert.
//
// The proof for a peak: all numbers of replicas are tried that fill the slots and leave no replica
// larger than the peak; for each of them ranks are filled one after the other, with the largest
// replica that is left and with all sets of others that fit, as long as the ranks still empty can
// take the rest. First the search lowers `high` and ends with a proof that nothing is below it.
// Where `max_nodes` steps do not suffice for that, peaks between `low` and `high` are tried, each
// with a part of the steps.
double small_bound(const BoundedLayer& layer, double low, double high, int64_t max_nodes);

}  // namespace trimtab
