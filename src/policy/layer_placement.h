// SPDX-License-Identifier: Apache-2.0
// Small pieces that several policies are made of. A placement of one layer is an array [slots] that
// gives the logical expert in each slot.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "policy/matrix.h"
#include "trimtab/policy.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

// Counts the slots of each rank that hold each expert: [ranks, experts]. Count must be able to hold
// the number of slots that one expert has on one rank.
template <class Count>
Matrix<Count> count_held(SlotRanges slots, std::span<const int32_t> placement, int num_experts) {
  Matrix<Count> held(slots.num_ranks(), num_experts, 0);
  for (int r = 0; r < slots.num_ranks(); ++r) {
    Count* on_rank = held[r].data();
    for (const int32_t e : slots.of(r, placement)) ++on_rank[e];
  }
  return held;
}

// The number of ranks that own at least one slot.
inline int ranks_with_slots(SlotRanges slots) {
  int ranks = 0;
  for (int r = 0; r < slots.num_ranks(); ++r) ranks += slots.count(r) > 0 ? 1 : 0;
  return ranks;
}

// The number of slots of the rank that owns the most, at least 1.
inline int most_slots(SlotRanges slots) {
  int most = 1;
  for (int r = 0; r < slots.num_ranks(); ++r) most = std::max(most, slots.count(r));
  return most;
}

// The ids 0, 1, ... count - 1 in the order that before(a, b) gives. Where it gives none, the lower
// id comes first.
template <class Before>
std::vector<int32_t> sorted_ids(int64_t count, Before before) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), before);
  return ids;
}

inline std::vector<int32_t> to_vector(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

// Calls plan_layer(layer), which returns a placement [slots], for every layer of the problem and
// puts the results one after the other: [layers, slots]. Throws PlanningStopped when the problem is
// told to stop.
template <class PlanLayer>
std::vector<int32_t> plan_layers(const Problem& problem, PlanLayer plan_layer) {
  std::vector<int32_t> all;
  for (int layer = 0; layer < problem.load.num_layers; ++layer) {
    check_stop(problem.stop);
    const std::vector<int32_t> one = plan_layer(layer);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace trimtab
