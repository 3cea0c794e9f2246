// SPDX-License-Identifier: Apache-2.0
#include "policy/static_map.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

const std::vector<int32_t> kFirstSlots = {0, 2, 5, 7};  // 2, 3 and 2 slots

TEST(StaticMap, Linear) {
  EXPECT_EQ(linear_map(5, kFirstSlots), (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1}));
}

TEST(StaticMap, RoundRobinPassesOverWhatTheRankHas) {
  EXPECT_EQ(round_robin_map(5, kFirstSlots), (std::vector<int32_t>{0, 3, 1, 4, 2, 2, 0}));
  EXPECT_EQ(round_robin_map(2, std::vector<int32_t>{0, 2, 4}), (std::vector<int32_t>{0, 1, 1, 0}));
}

TEST(StaticMap, MoreSlotsThanExperts) {
  EXPECT_EQ(round_robin_map(2, std::vector<int32_t>{0, 3, 3}), (std::vector<int32_t>{0, 1, 0}));
}

TEST(StaticMap, RandomDependsOnTheSeedAlone) {
  EXPECT_EQ(random_map(5, kFirstSlots, 1), random_map(5, kFirstSlots, 1));
  int different = 0;
  for (uint64_t seed = 2; seed < 12; ++seed)
    different += random_map(5, kFirstSlots, seed) != random_map(5, kFirstSlots, 1);
  EXPECT_GE(different, 8);
}

}  // namespace
}  // namespace trimtab
