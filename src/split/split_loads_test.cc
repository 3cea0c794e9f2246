// SPDX-License-Identifier: Apache-2.0
#include "split/split_loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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
  const Levelness split = levelness(rank_loads(placement, kLoad, 0, {SplitRule::kSplit}), 0);
  EXPECT_DOUBLE_EQ(split.par_step_mean, (4.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(split.par, 10.0 / 8);
  EXPECT_EQ(split.worst_step, 1);
  const Levelness turns = levelness(rank_loads(placement, kLoad, 0, {SplitRule::kRoundRobin}), 0);
  EXPECT_DOUBLE_EQ(turns.par_step_mean, (5.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(turns.par, 9.0 / 8);
}

TEST(SplitLoads, StaticDependsOnWhoSends) {
  // Two of three tokens come from rank 0, and a rank uses its own copy.
  const auto window_par_of = [](const Placement& placement, const Load& load) {
    return par(rank_loads(placement, load, 0, {SplitRule::kStatic}).window(0));
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
    const RankLoads loads = rank_loads(placement, load, 0, {SplitRule::kSplit});
    const double half = 0.75 * static_cast<double>(tokens);
    EXPECT_NEAR(loads.window(0)[0] / half, 1, 1e-8);
    EXPECT_NEAR(loads.window(0)[1] / half, 1, 1e-8);
  }
}

// Who sends changes which shares there are, never how high the peak is. Every sender counts: all
// tokens from one rank, by chance, or as rank_loads() spreads them.
TEST(SplitLoads, ThePeakDoesNotDependOnWhoSends) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const int ranks = 2 + round % 5, experts = 3 + static_cast<int>(random() % 9);
    const int slots = (experts + ranks - 1) / ranks + 1 + round % 2;
    std::vector<int32_t> logical;
    for (int s = 0; s < ranks * slots; ++s) {
      logical.push_back(s < experts ? s : static_cast<int32_t>(random() % cells(experts)));
    }
    std::ranges::shuffle(logical, random);
    const Placement placement(1, experts, std::vector<int>(cells(ranks), slots), logical);
    Load load{3, 1, experts, {}};
    for (int i = 0; i < 2 * experts; ++i)
      load.counts.push_back(static_cast<int64_t>(random() % (i % 3 == 0 ? 500 : 20)));
    load.counts.resize(cells(3, experts));  // the last step has no tokens
    const std::vector<double> pars = split_pars(placement, load, 0);
    EXPECT_EQ(pars, step_pars(rank_loads(placement, load, 0, {SplitRule::kSplit}), 0));
    ASSERT_EQ(pars[2], 1);

    std::vector<int32_t> nodes;
    for (int r = 0; r < ranks; ++r) nodes.push_back(static_cast<int32_t>(random() % 2));
    const SplitTable table(placement, 0, nodes);
    Workspace workspace(split_workspace_bytes(table));
    for (const bool from_one : {true, false}) {
      std::vector<int32_t> counts(cells(ranks, experts)), shares(cells(ranks, ranks * slots));
      std::vector<int64_t> loads(cells(ranks));
      for (int e = 0; e < experts; ++e) {
        for (int64_t token = 0; token < load.at(0, 0)[cells(e)]; ++token) {
          const int rank = from_one ? round % ranks : static_cast<int>(random() % cells(ranks));
          ++counts[cells(rank * experts + e)];
        }
      }
      split_tokens(SplitRule::kSplit, table, counts, workspace, shares);
      split_rank_loads(table, shares, loads);
      EXPECT_EQ(par(loads), pars[0]);
    }
  }
}

// Peaks are computed in whole tokens: past 2^31 of them, and past 2^53 but for what a double has.
TEST(SplitLoads, PeaksOfAnyNumberOfTokens) {
  const Placement placement(1, 3, {2, 2}, {0, 1, 0, 2});
  for (const int64_t tokens : {int64_t{3'000'000'001}, int64_t{1} << 40, int64_t{1} << 62}) {
    const Load load{2, 1, 3, {tokens, tokens / 2, 0, 0, tokens, 0}};
    const std::vector<double> pars = split_pars(placement, load, 0);
    EXPECT_NEAR(pars[0], 1, 1e-9);
    EXPECT_EQ(pars[1], 2);
  }
  // One token more than the mean: 2^32 + 1 tokens are odd.
  const int64_t odd = (int64_t{1} << 32) + 1;
  EXPECT_EQ(split_pars(placement, {1, 1, 3, {odd, 0, 0}}, 0)[0],
            static_cast<double>(odd + 1) / static_cast<double>(odd));
}

TEST(SplitLoads, WithoutARuleTheyAreEqual) {
  const Placement placement(1, 3, {2, 2}, {0, 1, 0, 2});
  const Load load{1, 1, 3, {3, 0, 0}};
  EXPECT_EQ(rank_loads(placement, load, 0, {parse_sharing("equal")}).window(0)[0], 1.5);
  EXPECT_EQ(parse_sharing("round_robin"), SplitRule::kRoundRobin);
  EXPECT_THROW(parse_sharing("best"), InvalidArgument);
  for (const Sharing sharing : {Sharing(), Sharing(SplitRule::kSplit)})
    EXPECT_THROW(rank_loads(placement, kLoad, 0, {sharing}), InvalidArgument);
}

// Four experts with a row each, and two replicas of the first two: `time` reads two experts on each
// rank, and `split` may read three.
TEST(RankTimes, AreThoseOfTheExpertsWithRows) {
  const Placement placement(1, 4, {3, 3}, {0, 1, 2, 0, 1, 3});
  const Load load{
      .num_steps = 2, .num_layers = 1, .num_experts = 4, .counts = {2, 2, 1, 1, 0, 0, 8, 4}};
  const CostModel cost({{1, 1'000'000}, {2, 1'010'000}});
  const RankLoads times = rank_times(placement, load, 0, {SplitRule::kTime, &cost});
  EXPECT_DOUBLE_EQ(times.at(0, 0)[0], 2.01e-6);
  EXPECT_DOUBLE_EQ(times.at(0, 0)[1], 2.01e-6);
  EXPECT_DOUBLE_EQ(times.at(1, 0)[0], 1.07e-6);
  EXPECT_DOUBLE_EQ(times.at(1, 0)[1], 1.03e-6);
  EXPECT_DOUBLE_EQ(times.window(0)[0], 3.08e-6);
  const RankLoads halves = rank_times(placement, load, 0, {.cost = &cost});
  EXPECT_DOUBLE_EQ(halves.at(0, 0)[0], 3e-6);
  EXPECT_DOUBLE_EQ(mean_step_peak(times, 0), (2.01e-6 + 1.07e-6) / 2);
  // In rows they are whole tokens by the same rule.
  const RankLoads rows = rank_loads(placement, load, 0, {SplitRule::kTime, &cost});
  EXPECT_DOUBLE_EQ(rows.at(0, 0)[0], 3);
  EXPECT_DOUBLE_EQ(rows.at(1, 0)[0] + rows.at(1, 0)[1], 12);
  EXPECT_THROW(rank_loads(placement, load, 0, {SplitRule::kTime}), InvalidArgument);
  EXPECT_THROW(rank_times(placement, load, 0, {SplitRule::kSplit}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
