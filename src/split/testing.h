// SPDX-License-Identifier: Apache-2.0
// Small random batches for the tests of split rules that try every split.
#pragma once

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "trimtab/placement.h"

namespace trimtab::test {

inline int draw(std::mt19937& rng, int low, int high) {
  return low + static_cast<int>(rng() % static_cast<unsigned>(high - low + 1));
}

// A placement of one layer. Every expert is there once, the other slots hold any experts,
// duplicates on a rank included. Ranks but the first may have no slots.
inline Placement random_placement(std::mt19937& rng, int max_ranks, int max_slots,
                                  int max_experts) {
  const int ranks = draw(rng, 1, max_ranks);
  std::vector<int> slots_per_rank;
  int slots = 0;
  for (int r = 0; r < ranks; ++r) {
    slots_per_rank.push_back(draw(rng, r == 0 ? 1 : 0, max_slots));
    slots += slots_per_rank.back();
  }
  const int experts = draw(rng, 1, std::min(max_experts, slots));
  std::vector<int32_t> logical;
  for (int s = 0; s < slots; ++s) logical.push_back(s < experts ? s : draw(rng, 0, experts - 1));
  for (size_t s = logical.size(); s > 1; --s) std::swap(logical[s - 1], logical[rng() % s]);
  return Placement(1, experts, slots_per_rank, logical);
}

// [ranks, experts] Tokens of each rank for each expert, a third of them 0.
inline std::vector<int32_t> random_counts(std::mt19937& rng, const Placement& placement,
                                          int max_count) {
  std::vector<int32_t> counts;
  for (int i = 0; i < placement.num_ranks() * placement.num_experts(); ++i)
    counts.push_back(std::max(0, draw(rng, -max_count / 2, max_count)));
  return counts;
}

}  // namespace trimtab::test
