// SPDX-License-Identifier: Apache-2.0
#include "policy/limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "policy/static_placement.h"
#include "policy/testing.h"

namespace trimtab {
namespace {

int64_t distinct_on_ranks(SlotRanges slots, std::span<const int32_t> placement) {
  int64_t distinct = 0;
  for (int r = 0; r < slots.num_ranks(); ++r) {
    const std::span<const int32_t> on_rank = slots.of(r, placement);
    distinct += std::ssize(std::set<int32_t>(on_rank.begin(), on_rank.end()));
  }
  return distinct;
}

// What holds for every placement on the way from one to another.
TEST(WithinMoveLimits, KeepsEveryExpertAndTheLimitsAndAddsNoDuplicate) {
  std::mt19937 random(31);
  int stopped_on_the_way = 0;
  for (int round = 0; round < 400; ++round) {
    const int ranks = 2 + round % 4;
    const int slots_per_rank = 2 + round % 3;
    const std::vector<int32_t> first_slots = equal_slots(ranks, slots_per_rank);
    const SlotRanges slots(first_slots);
    const int experts =
        slots_per_rank + static_cast<int>(random() % static_cast<unsigned>(slots_per_rank));
    const std::vector<int32_t> current = random_placement(experts, slots, random());
    const std::vector<int32_t> proposal = random_placement(experts, slots, random());
    std::vector<int64_t> load;
    for (int e = 0; e < experts; ++e) load.push_back(static_cast<int64_t>(random() % 100));
    const auto max_moves = static_cast<int64_t>(random() % 6);
    const auto max_receive = static_cast<int64_t>(1 + random() % 3);
    SCOPED_TRACE(testing::Message() << "round " << round);
    const std::vector<int32_t> result =
        within_move_limits(current, proposal, first_slots, load, max_moves, max_receive);
    EXPECT_EQ(std::set<int32_t>(result.begin(), result.end()).size(), static_cast<size_t>(experts));
    // random_placement() puts no expert twice on a rank, so neither does anything in between.
    EXPECT_EQ(distinct_on_ranks(slots, result), slots.num_slots());
    const std::vector<int64_t> in = received(current, result, first_slots);
    EXPECT_LE(std::accumulate(in.begin(), in.end(), int64_t{0}), max_moves);
    EXPECT_LE(std::ranges::max(in), max_receive);
    stopped_on_the_way += result != current && result != proposal ? 1 : 0;
  }
  EXPECT_GT(stopped_on_the_way, 50);
}

}  // namespace
}  // namespace trimtab
