// SPDX-License-Identifier: Apache-2.0
#include "load/episodes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace trimtab {
namespace {

const Load kSevenSteps{7, 1, 1, {1, 2, 4, 8, 16, 32, 64}};

TEST(Episodes, EvenOnesAreEqualRunsOfTheNewestSteps) {
  const auto even = [](int64_t most) {
    return to_episodes(kSevenSteps, EpisodeCut::even(7, most)).counts;
  };
  EXPECT_EQ(even(3), (std::vector<int64_t>{2 + 4 + 8, 16 + 32 + 64}));
  EXPECT_EQ(even(4), (std::vector<int64_t>{2 + 4, 8 + 16, 32 + 64}));
  EXPECT_EQ(even(64), kSevenSteps.counts);
}

TEST(Episodes, SpreadOnesLeaveNoStepOut) {
  const auto spread = [](int64_t most) {
    return to_episodes(kSevenSteps, EpisodeCut::spread(7, most)).counts;
  };
  EXPECT_EQ(spread(3), (std::vector<int64_t>{1 + 2, 4 + 8, 16 + 32 + 64}));
  EXPECT_EQ(spread(1), (std::vector<int64_t>{127}));
  EXPECT_EQ(spread(64), kSevenSteps.counts);
}

TEST(Episodes, AreConsecutiveAndOfEquallyManySteps) {
  for (int64_t steps = 0; steps < 40; ++steps) {
    for (int64_t most = 1; most < 45; ++most) {
      SCOPED_TRACE(testing::Message() << steps << " steps, at most " << most);
      for (const bool even : {true, false}) {
        const EpisodeCut cut =
            even ? EpisodeCut::even(steps, most) : EpisodeCut::spread(steps, most);
        ASSERT_LE(cut.count(), most);
        ASSERT_EQ(cut.count() == 0, steps == 0);
        if (steps == 0) continue;
        int64_t least = steps, largest = 0, next = cut[0].first;
        ASSERT_GE(next, 0);
        if (!even) {
          ASSERT_EQ(next, 0);
          ASSERT_EQ(cut.count(), std::min(steps, most));
        }
        for (int64_t i = 0; i < cut.count(); ++i) {
          ASSERT_EQ(cut[i].first, next);
          next = cut[i].last;
          least = std::min(least, cut[i].size());
          largest = std::max(largest, cut[i].size());
        }
        ASSERT_EQ(next, steps);
        ASSERT_GE(least, 1);
        ASSERT_LE(largest - least, even ? 0 : 1);
        if (even) {
          ASSERT_LT(cut[0].first, largest) << "the oldest would fill an episode";
        }
      }
    }
  }
}

TEST(Episodes, LayersAndExpertsStayApart) {
  const Load load{2, 2, 2, {1, 2, 3, 4, 10, 20, 30, 40}};
  const Load one = to_episodes(load, EpisodeCut::spread(2, 1));
  EXPECT_EQ(one.num_steps, 1);
  EXPECT_EQ(one.num_layers, 2);
  EXPECT_EQ(one.counts, (std::vector<int64_t>{11, 22, 33, 44}));
}

TEST(Steps, AreSummedAndCutOut) {
  const Load load{3, 2, 2, {4, 0, 9, 9, 0, 0, 9, 9, 1, 3, 9, 9}};
  EXPECT_EQ(sum_of_steps(load, 0, {0, 3}), (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(sum_of_steps(load, 0, {1, 3}), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(sum_of_steps(load, 1, {2, 2}), (std::vector<int64_t>{0, 0}));
  const Load last = steps_of(load, {2, 3});
  EXPECT_EQ(last.num_steps, 1);
  EXPECT_EQ(last.counts, (std::vector<int64_t>{1, 3, 9, 9}));
}

}  // namespace
}  // namespace trimtab
