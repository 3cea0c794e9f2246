// SPDX-License-Identifier: Apache-2.0
#include "load/rank_loads.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

const std::vector<int32_t> kFirstSlots = {0, 3, 6};

TEST(RankLoads, ShareAnExpertsTokensAmongItsSlots) {
  const std::vector<int32_t> map = {0, 0, 1, 0, 1, 2};
  EXPECT_EQ(replica_counts(map, 3), (std::vector<int32_t>{3, 2, 1}));
  EXPECT_EQ(rank_loads(map, kFirstSlots, std::vector<int64_t>{6, 4, 1}),
            (std::vector<double>{6, 5}));
  EXPECT_DOUBLE_EQ(peak_to_mean(std::vector<double>{6, 5}), 12.0 / 11);
  EXPECT_EQ(peak_to_mean(std::vector<double>{0, 0}), 1.0);
}

TEST(RankLoads, StepsAndTheirSum) {
  const Load load{3, 2, 2, {4, 0, 9, 9, 0, 0, 9, 9, 1, 3, 9, 9}};
  EXPECT_EQ(sum_of_steps(load, 0, 0, 3), (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(sum_of_steps(load, 0, 1, 3), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(sum_of_steps(load, 1, 2, 2), (std::vector<int64_t>{0, 0}));
  const std::vector<int32_t> first_slots = {0, 1, 2};
  EXPECT_EQ(step_pars(std::vector<int32_t>{0, 1}, first_slots, load, 0),
            (std::vector<double>{2, 1, 1.5}));
}

TEST(RankLoads, DuplicatesAreCountedPerRank) {
  EXPECT_EQ(duplicate_slots(std::vector<int32_t>{0, 0, 0, 0, 1, 1}, kFirstSlots), 3);
  EXPECT_EQ(duplicate_slots(std::vector<int32_t>{0, 1, 2, 2, 1, 0}, kFirstSlots), 0);
}

}  // namespace
}  // namespace trimtab
