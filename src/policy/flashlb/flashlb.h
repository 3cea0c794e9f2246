// SPDX-License-Identifier: Apache-2.0
// FlashLB (vLLM-Ascend): replica counts and placement decided together by a tree search over groups
// of experts, on many episodes of the load at once, and only for layers that have become uneven.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/flashlb/flash_stats.h"

namespace trimtab {

struct FlashOptions {
  double z = 2.326;  // 99th percentile of a normal distribution; the source has the 75th
  int depth = 4;     // groups of experts, by falling risk
  int width = 16;    // tries in a row without a better map that end a direction of the search
  int beam = 2;      // partial plans kept at each level
  int max_episodes = 64;

  // A layer is planned when its average-to-peak ratio (1 / PAR) is below `history` of what it was
  // after its last plan, or below `value`; small groups of ranks can be held to more.
  int small_ranks = 32;
  double history = 0.9, value = 0.85;
  double small_history = 0.95, small_value = 0.9;
  double min_gain = 0.002;  // of the ratio, for a new map to be worth its moves
};

struct FlashMap {
  std::vector<int32_t> map;  // [slots], ranks in no particular order
  double score = 1;          // mean PAR over the episodes
};

// Searches a map for one layer. first_slots: [ranks + 1].
//
// Level after level one group of experts (the riskiest first) gets its number of extra copies:
// numbers ever further from what the greedy rule gives are tried, downwards and upwards, until
// `width` in a row bring nothing. A try is looked ahead to the end: the other groups get their
// copies greedily, all are packed, and the result is scored on all episodes. Tries whose replica
// counts alone rule out a better score are pruned unpacked. The best complete map met anywhere is
// the result.
//
// Source: vllm-ascend, pull request text of FlashLB and policy_flashlb.py. Differences: it tries
// the numbers within 8 of the greedy one and keeps one partial plan a level; it adds up variances
// of ranks twice, leaves slots empty when all free ranks hold the expert already, and plans as if
// an expert could use more copies than there are ranks.
FlashMap flash_search(const EpisodeStats& stats, std::span<const int32_t> first_slots,
                      const FlashOptions& options = {});

}  // namespace trimtab
