// SPDX-License-Identifier: Apache-2.0
#include "trimtab/replay.h"

#include <gtest/gtest.h>

#include <string>

#include "policy/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Worked out by hand: experts 0 and 1 on rank 0, 2 and 3 on rank 1; the fifth step fills no window.
const Load kFiveSteps{5, 1, 4, {1, 1, 1, 1, 9, 9, 1, 1, 3, 0, 1, 0, 1, 0, 1, 0, 9, 0, 0, 0}};

TEST(Replay, MeasuresOnTheNextWindow) {
  const auto policy = make_policy("static");
  const ReplayResult result =
      replay(*policy, kFiveSteps, Placement::linear(1, 4, 2), {.window = 2});
  EXPECT_DOUBLE_EQ(result.par_next_mean, (1.5 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(result.par_next_worst, 1.5);
  EXPECT_EQ(result.first_plan_moves, 0);
  EXPECT_EQ(result.moves_per_layer_per_replan, 0);
}

TEST(Replay, EveryPlanStartsFromTheLastWithItsHistory) {
  const Placement start = Placement::linear(1, 4, 2);
  std::vector<std::string> calls;
  // Swaps the experts of the first and the last slot, and remembers how often it was asked.
  const FakePolicy policy([&](const Problem& problem) {
    const int64_t seen = problem.history == nullptr ? -1 : problem.history->steps_seen;
    std::vector<int32_t> logical(problem.current.logical().begin(),
                                 problem.current.logical().end());
    calls.push_back(std::to_string(problem.load.counts[0]) + " from " + std::to_string(logical[0]) +
                    ", seen " + std::to_string(seen) + ", groups " +
                    std::to_string(problem.num_groups));
    std::swap(logical.front(), logical.back());
    Plan plan{.placement = problem.current.with(logical, problem.current.version() + 1)};
    plan.moves = {{0, 0, logical[0]}, {0, 3, logical[3]}};
    plan.history.steps_seen = std::ssize(calls);
    return plan;
  });
  std::vector<int64_t> numbers;
  const ReplayResult result = replay(policy, kFiveSteps, start, {.window = 1, .num_groups = 2},
                                     [&](const ReplayedPlan& one) {
                                       numbers.push_back(one.number);
                                       EXPECT_EQ(one.next.rank_load.size(), 2U);
                                     });
  EXPECT_EQ(calls,
            (std::vector<std::string>{"1 from 0, seen -1, groups 2", "9 from 3, seen 1, groups 2",
                                      "3 from 0, seen 2, groups 2", "1 from 3, seen 3, groups 2"}));
  EXPECT_EQ(numbers, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(result.first_plan_moves, 2);
  EXPECT_DOUBLE_EQ(result.moves_per_layer_per_replan, 2);
  // Steps 1 to 4 under 3 1 2 0, 0 1 2 3, 3 1 2 0, 0 1 2 3: rank 0 has 10, 3, 0 and 9 tokens.
  EXPECT_DOUBLE_EQ(result.par_next_mean, (1 + 1.5 + 2 + 2) / 4);
  EXPECT_DOUBLE_EQ(result.par_next_worst, 2);
}

TEST(Replay, SharesTokensByTheRule) {
  const Placement start(1, 3, {2, 2}, {0, 1, 2, 0});
  const Load load{2, 1, 3, {1, 1, 1, 5, 4, 1}};
  const auto policy = make_policy("static");
  const auto par = [&](std::optional<SplitRule> split) {
    return replay(*policy, load, start, {.window = 1, .split = split}).par_next_mean;
  };
  EXPECT_DOUBLE_EQ(par(std::nullopt), 6.5 / 5);
  EXPECT_DOUBLE_EQ(par(SplitRule::kSplit), 1);
}

TEST(Replay, TheDefaultWindowIsAnEighthOfTheSteps) {
  EXPECT_EQ(default_window(kFiveSteps), 1);
  EXPECT_EQ(default_window({128, 1, 1, std::vector<int64_t>(128)}), 16);
  EXPECT_EQ(default_window({1, 1, 1, {4}}), 1);
}

TEST(Replay, NeedsTwoWindows) {
  EXPECT_EQ(num_replans(kFiveSteps, 1), 4);
  EXPECT_EQ(num_replans(kFiveSteps, 2), 1);
  for (const int64_t window : {int64_t{3}, int64_t{0}, int64_t{-1}, int64_t{1} << 62})
    EXPECT_THROW(num_replans(kFiveSteps, window), InvalidArgument);
  const auto policy = make_policy("static");
  EXPECT_THROW(replay(*policy, kFiveSteps, Placement::linear(1, 5, 2), {.window = 1}),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
