// SPDX-License-Identifier: Apache-2.0
#include "policy/static_placement.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

const std::vector<int32_t> kFirstSlots = {0, 2, 5, 7};  // 2, 3 and 2 slots
const SlotRanges kSlots(kFirstSlots);

const std::vector<int32_t> kTwoOfTwo = {0, 2, 4};
const std::vector<int32_t> kThreeAndNone = {0, 3, 3};

TEST(StaticPlacement, Linear) {
  EXPECT_EQ(linear_placement(5, kSlots), (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1}));
}

TEST(StaticPlacement, RoundRobinPassesOverWhatTheRankHas) {
  EXPECT_EQ(round_robin_placement(5, kSlots), (std::vector<int32_t>{0, 3, 1, 4, 2, 2, 0}));
  EXPECT_EQ(round_robin_placement(2, SlotRanges(kTwoOfTwo)), (std::vector<int32_t>{0, 1, 1, 0}));
}

TEST(StaticPlacement, MoreSlotsThanExperts) {
  EXPECT_EQ(round_robin_placement(2, SlotRanges(kThreeAndNone)), (std::vector<int32_t>{0, 1, 0}));
}

TEST(StaticPlacement, RandomDependsOnTheSeedAlone) {
  EXPECT_EQ(random_placement(5, kSlots, 1), random_placement(5, kSlots, 1));
  int different = 0;
  for (uint64_t seed = 2; seed < 12; ++seed)
    different += random_placement(5, kSlots, seed) != random_placement(5, kSlots, 1);
  EXPECT_GE(different, 8);
}

// Compilers evaluate the arguments of a call in different orders, which must not show.
TEST(StaticPlacement, RandomIsTheSameWithEveryCompiler) {
  EXPECT_EQ(random_placement(5, kSlots, 1), (std::vector<int32_t>{3, 0, 0, 4, 1, 2, 0}));
  EXPECT_EQ(random_placement(5, kSlots, 2), (std::vector<int32_t>{2, 3, 2, 4, 0, 1, 4}));
}

}  // namespace
}  // namespace trimtab
