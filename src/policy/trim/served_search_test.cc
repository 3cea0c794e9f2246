// SPDX-License-Identifier: Apache-2.0
// trim's plans for the rule that serves.
#include "policy/trim/served_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "policy/one_layer.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

// FlashLB's example: 8 experts on 8 ranks x 2 slots. No placement needs less than five moves to be
// level when tokens are shared out freely (proved with a MILP); with equal shares seven moves end
// at a PAR of 1.085.
TEST(ServedSearch, LevelsTheExampleOfFlashLBWithTheFewestMoves) {
  const Load load{.num_steps = 1,
                  .num_layers = 1,
                  .num_experts = 8,
                  .counts = {4800, 4480, 960, 960, 160, 80, 80, 80}};
  const Placement current = default_placement(1, 8, std::vector<int>(8, 2));
  const auto policy = make_policy("trim");
  const Plan plan =
      policy->rebalance({.load = load, .current = current, .split = SplitRule::kSplit});
  EXPECT_DOUBLE_EQ(plan.layers[0].par_after, 1.0);
  EXPECT_DOUBLE_EQ(split_pars(plan.placement, load, 0)[0], 1.0);
  EXPECT_EQ(plan.moves.size(), 5);
  const Plan equal = policy->rebalance({.load = load, .current = current});
  EXPECT_EQ(equal.moves.size(), 7);
  EXPECT_NEAR(equal.layers[0].par_after, 1.0851, 1e-4);
}

// Against every placement that is reached with up to two moves, and against what equal shares plan.
TEST(ServedSearch, NoPlacementOfSmallLayersDoesBetterWithAsFewMoves) {
  std::mt19937 random(21);
  const auto policy = make_policy("trim");
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    const int ranks = 2 + round % 3, experts = ranks + 1;
    const Placement current = default_placement(1, experts, std::vector<int>(cells(ranks), 2));
    Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
    for (int e = 0; e < experts; ++e)
      load.counts.push_back(static_cast<int64_t>(1 + random() % (e == 0 ? 5000 : 1000)));
    const Plan plan =
        policy->rebalance({.load = load, .current = current, .split = SplitRule::kSplit});
    const int64_t moves = std::ssize(plan.moves);
    const double found = split_pars(plan.placement, load, 0)[0];
    EXPECT_LE(found, split_pars(current, load, 0)[0]);
    EXPECT_DOUBLE_EQ(plan.layers[0].par_after, found);
    // All single overwrites, and overwrites of these.
    std::vector<std::vector<int32_t>> reached = {
        {current.logical(0).begin(), current.logical(0).end()}};
    for (int64_t depth = 1; depth <= std::min<int64_t>(moves, 2); ++depth) {
      std::vector<std::vector<int32_t>> next;
      for (const std::vector<int32_t>& from : reached) {
        for (size_t s = 0; s < from.size(); ++s) {
          if (std::ranges::count(from, from[s]) < 2) continue;
          for (int e = 0; e < experts; ++e) {
            next.push_back(from);
            next.back()[s] = e;
          }
        }
      }
      reached = std::move(next);
    }
    if (moves > 2) continue;
    for (const std::vector<int32_t>& one : reached)
      EXPECT_GE(split_pars(one_layer(current, one), load, 0)[0], found - 2e-3);
  }
}

// The estimate under `split` is the exact peak but for whole tokens and the last sweep.
TEST(QuickCost, IsNearTheRule) {
  std::mt19937 random(22);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const int ranks = 2 + round % 7, experts = 2 * ranks;
    const Placement placement = default_placement(1, experts, std::vector<int>(cells(ranks), 3));
    ServedSteps steps{.load = {.num_steps = 2, .num_layers = 1, .num_experts = experts},
                      .weights = {0.25, 0.75}};
    for (int i = 0; i < 2 * experts; ++i)
      steps.load.counts.push_back(static_cast<int64_t>(random() % (i % 5 == 0 ? 90'000 : 9'000)));
    const CostModel unlike({{1, 1'000'000}, {100'000, 1'010'000}});
    for (const Serving& serving : {Serving{SplitRule::kSplit}, Serving{SplitRule::kRoundRobin},
                                   Serving{}, Serving{SplitRule::kTime, &unlike}}) {
      QuickCost quick(steps, SlotRanges(placement.first_slots()), serving);
      const double exact = served_cost(placement, placement.logical(0), steps, serving);
      const double estimate = quick.of(placement.logical(0)).peak;
      // Experts that stay together are placed greedily, and where few ranks hold each of them that
      // is near the best, but not a bound.
      const double most = serving.cost != nullptr ? 1.2 : 1.003;
      EXPECT_LE(estimate, exact * most);
      EXPECT_GE(estimate, exact * (serving.cost != nullptr ? 0.8 : 0.997));
    }
  }
}

// Reading weights is all that costs: replicas beyond the first are of no use under round_robin,
// where every replica that gets a row is read. The plan has no more of them than there were.
TEST(ServedSearch, MakesNoReplicaThatOnlyAddsReads) {
  const CostModel weights({{1, 1'000'000}, {2, 1'000'001}});
  // Expert 0 is hot; the slots beyond one for each expert hold 4 and 5, which nobody picks.
  const Placement current(1, 6, {2, 2, 2, 2}, {0, 4, 1, 5, 2, 4, 3, 5});
  Load load{.num_steps = 8, .num_layers = 1, .num_experts = 6, .counts = {}};
  for (int step = 0; step < 8; ++step) load.counts.insert(load.counts.end(), {40, 2, 2, 2, 0, 0});
  const auto policy = make_policy("trim");
  const Plan in_rows =
      policy->rebalance({.load = load, .current = current, .split = SplitRule::kRoundRobin});
  EXPECT_GT(in_rows.moves.size(), 0);
  const Plan in_time = policy->rebalance(
      {.load = load, .current = current, .split = SplitRule::kRoundRobin, .cost = &weights});
  EXPECT_TRUE(in_time.moves.empty());
  EXPECT_NEAR(in_time.layers[0].step_seconds_after, 1e-6, 1e-9);
}

// Decode steps: four of twelve experts have rows, two of them together more often than not, and
// reading weights is all that costs. Placed by the sums of their rows, experts that meet share
// ranks.
TEST(ServedSearch, PlansOnSingleStepsWhereWeightsCostMost) {
  std::mt19937 random(23);
  const CostModel weights({{1, 1'000'000}, {64, 1'010'000}});
  const Serving time = {SplitRule::kTime, &weights};
  const auto policy = make_policy("trim");
  double by_time = 0, by_sums = 0;
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    Load load{.num_steps = 64, .num_layers = 1, .num_experts = 12, .counts = {}};
    load.counts.resize(64 * 12);
    for (int64_t step = 0; step < 64; ++step) {
      int64_t* const counts = load.counts.data() + step * 12;
      const int pair = static_cast<int>(random() % 3);
      counts[pair] = counts[11 - pair] = 1 + static_cast<int64_t>(random() % 8);
      for (int i = 0; i < 2; ++i) counts[random() % 12] += 1 + static_cast<int64_t>(random() % 8);
    }
    const Placement current = default_placement(1, 12, {4, 4, 4, 4});
    const auto seconds = [&](const Placement& placement) {
      return mean_step_peak(rank_times(placement, load, 0, time), 0);
    };
    const Plan planned = policy->rebalance(
        {.load = load, .current = current, .split = SplitRule::kTime, .cost = &weights});
    const Plan summed = policy->rebalance({.load = load, .current = current});
    EXPECT_DOUBLE_EQ(planned.layers[0].step_seconds_after, seconds(planned.placement));
    EXPECT_LE(seconds(planned.placement), seconds(current));
    by_time += seconds(planned.placement);
    by_sums += seconds(summed.placement);
    EXPECT_EQ(
        policy
            ->rebalance(
                {.load = load, .current = current, .split = SplitRule::kTime, .cost = &weights})
            .moves,
        planned.moves);
  }
  EXPECT_LT(by_time, 0.95 * by_sums);
}

TEST(ServedSearch, TimeNeedsACostModelForAllRanks) {
  const Load load{.num_steps = 1, .num_layers = 1, .num_experts = 2, .counts = {1, 2}};
  const Placement current = default_placement(1, 2, {1, 1});
  const auto policy = make_policy("static");
  EXPECT_THROW(policy->rebalance({.load = load, .current = current, .split = SplitRule::kTime}),
               InvalidArgument);
  const CostModel three({{1, 5}}, {1000, 500, 500});
  EXPECT_THROW(policy->rebalance({.load = load, .current = current, .cost = &three}),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
