// SPDX-License-Identifier: Apache-2.0
// FlashLB (vLLM-Ascend) decides numbers of replicas and their placement together by a tree search
// over groups of experts. It looks at many episodes of the load at once, and plans only layers that
// have become uneven.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/flashlb/flash_stats.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

struct FlashOptions {
  double z = 2.326;  // 99th percentile of a normal distribution; the source has the 75th
  int depth = 4;     // groups of experts, by falling risk
  int width = 16;    // tries in a row without a better placement that end a direction
  int beam = 2;      // partial plans kept after each group
  int max_episodes = 64;

  // A layer is planned when its average-to-peak ratio (1 / PAR) is below `history` of what it was
  // after its last plan, or below `value`; small groups of ranks can be held to more.
  int small_ranks = 32;
  double history = 0.9, value = 0.85;
  double small_history = 0.95, small_value = 0.9;
  double min_gain = 0.002;  // the gain of the ratio from which a placement is worth its moves
};

struct FlashPlacement {
  std::vector<int32_t> experts;  // [slots], ranks in no particular order
  double score = 1;              // mean PAR over the episodes
};

// Searches a placement for one layer.
//
// One group of experts after the other, the riskiest first, gets its number of extra replicas. The
// search tries numbers ever further from what the greedy rule gives, downwards and upwards, until
// `width` in a row bring nothing. It looks ahead from each try to the end: the other groups get
// their replicas greedily, all are packed, and the result is scored on all episodes. Tries whose
// replica counts alone rule out a better score are not packed. The best complete placement met
// anywhere is the result.
//
// Source: vllm-ascend, pull request text of FlashLB and policy_flashlb.py. Differences: it tries
// the numbers within 8 of the greedy one and keeps one partial plan a group; it adds up variances
// of ranks twice, leaves slots empty when all free ranks hold the expert already, and plans as if
// an expert could use more replicas than there are ranks.
FlashPlacement flash_search(const EpisodeStats& stats, SlotRanges slots,
                            const FlashOptions& options = {});

}  // namespace trimtab
