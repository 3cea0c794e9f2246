// SPDX-License-Identifier: Apache-2.0
#include "split/split_loads.h"

#include <gtest/gtest.h>

#include "trimtab/error.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

// Two steps, one layer, four experts.
const Load kLoad{2, 1, 4, {6, 2, 0, 0, 0, 2, 4, 2}};

// Expert 0 on both ranks. Steps: 6, 2, 0, 0 and 0, 2, 4, 2.
TEST(SplitLoads, SharesOutWholeTokensByTheRule) {
  const Placement placement(1, 4, {2, 3}, {0, 1, 0, 2, 3});
  // Of the first step's 8 tokens rank 0 gets two of expert 1, and two or, in turns, three of expert
  // 0.
  const Levelness split = levelness(rank_loads(placement, kLoad, 0, SplitRule::kSplit, {}), 0);
  EXPECT_DOUBLE_EQ(split.par_step_mean, (4.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(split.par, 10.0 / 8);
  EXPECT_EQ(split.worst_step, 1);
  const Levelness turns = levelness(rank_loads(placement, kLoad, 0, SplitRule::kRoundRobin, {}), 0);
  EXPECT_DOUBLE_EQ(turns.par_step_mean, (5.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(turns.par, 9.0 / 8);
}

TEST(SplitLoads, StaticDependsOnWhoSends) {
  // Two of three tokens come from rank 0, and a rank uses its own copy.
  const auto window_par_of = [](const Placement& placement, const Load& load) {
    return par(rank_loads(placement, load, 0, SplitRule::kStatic, {}).window(0));
  };
  EXPECT_DOUBLE_EQ(window_par_of(Placement(1, 1, {1, 1}, {0, 0}), {1, 1, 1, {3}}), 2 / 1.5);
  // Odd tokens go on with the next rank: expert 1's only one comes from rank 1.
  const Placement both(1, 2, {2, 2}, {0, 1, 0, 1});
  EXPECT_DOUBLE_EQ(window_par_of(both, {1, 1, 2, {3, 1}}), 1.0);
}

// Counts of 32 bits do not hold such a step; with rank 0's replica the split is level all the same.
TEST(SplitLoads, StepsMayHaveAnyNumberOfTokens) {
  const Placement placement(1, 3, {2, 2}, {0, 1, 0, 2});
  for (const int64_t tokens : {int64_t{3'000'000'000}, int64_t{1} << 40, int64_t{1} << 61}) {
    const Load load{1, 1, 3, {tokens, tokens / 2, 0}};
    const RankLoads loads = rank_loads(placement, load, 0, SplitRule::kSplit, {});
    const double half = 0.75 * static_cast<double>(tokens);
    EXPECT_NEAR(loads.window(0)[0] / half, 1, 1e-8);
    EXPECT_NEAR(loads.window(0)[1] / half, 1, 1e-8);
  }
}

TEST(SplitLoads, WithoutARuleTheyAreEqual) {
  const Placement placement(1, 3, {2, 2}, {0, 1, 0, 2});
  const Load load{1, 1, 3, {3, 0, 0}};
  EXPECT_EQ(rank_loads(placement, load, 0, parse_sharing("equal"), {}).window(0)[0], 1.5);
  EXPECT_EQ(parse_sharing("round_robin"), SplitRule::kRoundRobin);
  EXPECT_THROW(parse_sharing("best"), InvalidArgument);
  for (const Sharing sharing : {Sharing(), Sharing(SplitRule::kSplit)})
    EXPECT_THROW(rank_loads(placement, kLoad, 0, sharing, {}), InvalidArgument);
}

// Four experts with a row each, and two replicas of the first two: `time` reads two experts on each
// rank, and `split` may read three.
TEST(RankTimes, AreThoseOfTheExpertsWithRows) {
  const Placement placement(1, 4, {3, 3}, {0, 1, 2, 0, 1, 3});
  const Load load{
      .num_steps = 2, .num_layers = 1, .num_experts = 4, .counts = {2, 2, 1, 1, 0, 0, 8, 4}};
  const CostModel cost({{1, 1'000'000}, {2, 1'010'000}});
  const RankLoads times = rank_times(placement, load, 0, SplitRule::kTime, cost);
  EXPECT_DOUBLE_EQ(times.at(0, 0)[0], 2.01e-6);
  EXPECT_DOUBLE_EQ(times.at(0, 0)[1], 2.01e-6);
  EXPECT_DOUBLE_EQ(times.at(1, 0)[0], 1.07e-6);
  EXPECT_DOUBLE_EQ(times.at(1, 0)[1], 1.03e-6);
  EXPECT_DOUBLE_EQ(times.window(0)[0], 3.08e-6);
  const RankLoads halves = rank_times(placement, load, 0, SplitRule::kRoundRobin, cost);
  EXPECT_DOUBLE_EQ(halves.at(0, 0)[0], 3e-6);
  EXPECT_THROW(rank_loads(placement, load, 0, SplitRule::kTime, {}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
