// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/grow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "policy/trim/episodes.h"
#include "policy/trim/searched_slots.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

// Every placement that is shown keeps every expert, the limits and the rule against duplicates, and
// moves never fall.
TEST(Grow, ShowsValidPlacementsByRisingMoves) {
  std::mt19937 random(7);
  int64_t shown = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const int ranks = 2 + round % 4, slots_per_rank = 2 + round % 3;
    const int experts =
        slots_per_rank + 1 + static_cast<int>(random() % static_cast<unsigned>(slots_per_rank));
    const Placement current =
        default_placement(1, std::min(experts, ranks * slots_per_rank),
                          std::vector<int>(static_cast<size_t>(ranks), slots_per_rank));
    Load load{.num_steps = 3, .num_layers = 1, .num_experts = current.num_experts(), .counts = {}};
    for (int i = 0; i < 3 * load.num_experts; ++i)
      load.counts.push_back(static_cast<int64_t>(random() % 100));
    const Episodes episodes = layer_episodes(load, nullptr, 0, 8, ranks);
    const SearchedSlots slots(current);
    const LayerTask task = slots.task(0, episodes, 0);
    const LayerLimits limits{.max_moves = round % 9, .max_receive = 1 + round % 3};
    int last = 1;
    grow(task, slots.current(0), limits, 1'000'000, [&](const std::vector<int32_t>& placement) {
      ++shown;
      EXPECT_EQ(std::set<int32_t>(placement.begin(), placement.end()).size(),
                static_cast<size_t>(load.num_experts));
      EXPECT_GE(task.moves(placement), last);
      last = task.moves(placement);
      EXPECT_LE(last, limits.max_moves);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_LE(task.received(r, placement), limits.max_receive);
        const auto on_rank = slots.slots().of(r, std::span(placement));
        EXPECT_EQ(std::set<int32_t>(on_rank.begin(), on_rank.end()).size(), on_rank.size());
      }
    });
  }
  EXPECT_GT(shown, 500);
}

}  // namespace
}  // namespace trimtab
