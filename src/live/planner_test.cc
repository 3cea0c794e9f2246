// SPDX-License-Identifier: Apache-2.0
#include "live/planner.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "policy/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Experts 0 and 1 of 4 are hot and on the same one of 2 ranks; each rank has a redundant slot.
Placement skewed() {
  return {1, 4, {3, 3}, {0, 1, 2, 2, 3, 3}};
}

Window window_of(const Placement& placement, const std::vector<int64_t>& counts) {
  Window window;
  const auto experts = static_cast<size_t>(placement.num_experts());
  window.load = {static_cast<int64_t>(counts.size() / experts), 1, placement.num_experts(), counts};
  window.rank_loads = RankLoads(window.load.num_steps, 1, placement.num_ranks());
  for (int64_t part = 0; part < window.load.num_steps; ++part) {
    const auto load = window.load.at(part, 0);
    // Every expert on the first rank that has it.
    for (size_t e = 0; e < experts; ++e) {
      for (int slot = 0; slot < placement.num_slots(); ++slot) {
        if (placement.logical(0)[slot] != static_cast<int32_t>(e)) continue;
        window.rank_loads.at(part, 0)[placement.rank_of_slot(slot)] += static_cast<double>(load[e]);
        break;
      }
    }
  }
  window.rank_loads.sum_up_window();
  return window;
}

PlanTask task_of(const std::vector<int64_t>& counts,
                 std::shared_ptr<const Policy> policy = make_policy("trim")) {
  PlanTask task{.config = {},
                .policy = std::move(policy),
                .window = window_of(skewed(), counts),
                .current = skewed(),
                .topology = {},
                .history = {},
                .expert_bytes = 1000,
                .max_receive = 3,
                .costs = {.step_seconds = 1e-2}};
  return task;
}

// A policy that gives this map, whatever it is asked.
std::shared_ptr<const Policy> gives(Placement placement) {
  return std::make_shared<FakePolicy>(
      [placement](const Problem&) { return Plan{.placement = placement}; });
}

const std::vector<int64_t> kSkewedLoad = {90, 80, 10, 20, 80, 90, 20, 10};

TEST(Planner, LevelsASkewedWindow) {
  const PlanResult result = make_plan(task_of(kSkewedLoad));
  ASSERT_EQ(result.kind, PlanResult::Kind::kPlan) << result.why;
  EXPECT_GT(result.predicted, 0.4);
  EXPECT_GE(result.moves, 1);
  EXPECT_EQ(result.logical.size(), 6U);
  EXPECT_GT(result.seconds, 0);
}

TEST(Planner, LeavesThingsAsTheyAreWithoutReason) {
  EXPECT_EQ(make_plan(task_of({0, 0, 0, 0})).kind, PlanResult::Kind::kNothing);
  EXPECT_EQ(make_plan(task_of({})).kind, PlanResult::Kind::kNothing);
  const PlanResult level = make_plan(task_of({10, 10, 10, 30}));
  EXPECT_EQ(level.kind, PlanResult::Kind::kNothing);
  EXPECT_NE(level.why.find("level"), std::string::npos);
  PlanTask modest = task_of(kSkewedLoad);
  modest.config.plan_above_par = 3;
  EXPECT_EQ(make_plan(modest).kind, PlanResult::Kind::kNothing);
  EXPECT_EQ(make_plan(task_of(kSkewedLoad, gives(skewed()))).kind, PlanResult::Kind::kNothing);
}

TEST(Planner, TheGateWantsMovesToPay) {
  PlanTask task = task_of(kSkewedLoad);
  task.costs.seconds_per_byte = 1;
  const PlanResult dear = make_plan(task);
  EXPECT_EQ(dear.kind, PlanResult::Kind::kRejected);
  EXPECT_GT(dear.predicted, 0.4);
  task.config.gate = false;
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kPlan);
  task.config.gate = true;
  task.costs.seconds_per_byte = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kRejected);
  // A map that is worse than the one there is.
  const Placement worse(1, 4, {3, 3}, {0, 1, 3, 2, 3, 2});
  EXPECT_EQ(make_plan(task_of({100, 100, 1, 1}, gives(worse))).kind, PlanResult::Kind::kRejected);
}

TEST(Planner, TheGateCountsAllStepsOfAPlansLife) {
  // All tokens on rank 0, then half of them on each: each step takes half of its time with experts.
  const Placement level(1, 4, {3, 3}, {0, 2, 3, 1, 2, 3});
  PlanTask task = task_of({100, 100, 0, 0}, gives(level));
  task.config.interval = 200;
  task.config.expected_life_windows = 3;
  task.costs.seconds_per_layer = 0;
  const double saved = 0.5 * task.costs.step_seconds * task.config.expert_share * 200 * 3;
  const double bytes = 2 * 1000;  // expert 1 to rank 1 and expert 3 to rank 0
  task.costs.seconds_per_byte = 0.99 * saved / bytes;
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kPlan);
  task.costs.seconds_per_byte = 1.01 * saved / bytes;
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kRejected);
}

TEST(Planner, ThePolicyIsToldHowMuchARankCanReceive) {
  int64_t told = -1;
  PlanTask task = task_of(kSkewedLoad, std::make_shared<FakePolicy>([&](const Problem& problem) {
                            told = problem.limits.max_receive_per_rank;
                            return Plan{.placement = problem.current};
                          }));
  task.max_receive = 2;
  make_plan(task);
  EXPECT_EQ(told, 2);
  task.config.limits.max_receive_per_rank = 1;
  make_plan(task);
  EXPECT_EQ(told, 1);
}

TEST(Planner, SkewThatOnlyTheSumShowsIsPlanned) {
  // One token in each part, always to rank 0. A part says little: with one token, chance alone
  // leaves a PAR far above 1. That all 64 went to one rank is no chance.
  std::vector<int64_t> counts;
  for (int part = 0; part < 64; ++part) {
    for (int e = 0; e < 4; ++e) counts.push_back(e == part % 2 ? 1 : 0);
  }
  const Placement level(1, 4, {3, 3}, {0, 2, 3, 1, 2, 3});
  PlanTask task = task_of(counts, gives(level));
  task.config.plan_above_par = 1.5;
  task.config.gate = false;
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kPlan) << make_plan(task).why;
}

TEST(Planner, APlanThatCannotBeTakenIsNone) {
  const auto why = [](std::shared_ptr<const Policy> policy) {
    const PlanResult result = make_plan(task_of(kSkewedLoad, std::move(policy)));
    EXPECT_EQ(result.kind, PlanResult::Kind::kFailed);
    return result.why;
  };
  EXPECT_NE(why(gives(Placement(1, 4, {4, 2}, {0, 1, 2, 3, 2, 3}))).find("not what there is"),
            std::string::npos);
  EXPECT_NE(why(gives(Placement(1, 4, {3, 3}, {0, 0, 0, 1, 2, 3}))).find("twice on one rank"),
            std::string::npos);
  EXPECT_NE(why(std::make_shared<FakePolicy>([](const Problem&) -> Plan {
              throw InvalidArgument("bad day");
            })).find("bad day"),
            std::string::npos);
  EXPECT_NE(why(std::make_shared<FakePolicy>([](const Problem&) -> Plan { throw 1; })), "");
  const auto loses = [](const Problem& problem) -> Plan {
    return {.placement = Placement(1, problem.current.num_experts(), {3, 3}, {0, 1, 2, 0, 1, 2})};
  };
  EXPECT_NE(why(std::make_shared<FakePolicy>(loses)), "");  // expert 3 has no slot
}

// What a policy remembers of earlier windows outlives a window in which it fails.
TEST(Planner, AFailedPlanForgetsNothing) {
  PlanTask task = task_of(kSkewedLoad, std::make_shared<FakePolicy>([](const Problem&) -> Plan {
                            throw InvalidArgument("bad day");
                          }));
  task.history = std::make_shared<const History>(
      History{.episodes = {1, 1, 4, {1, 2, 3, 4}}, .weights = {5}, .steps_seen = 5});
  const PlanResult result = make_plan(task);
  EXPECT_EQ(result.kind, PlanResult::Kind::kFailed);
  EXPECT_EQ(result.history, task.history);
}

TEST(Planner, LayersThatNeedMoreSparesThanThereAreAreLeftOut) {
  const Placement two_layers(2, 4, {2, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
  const Placement next(2, 4, {2, 2}, {2, 3, 0, 1, 0, 2, 1, 3});
  PlanTask task{.config = {.gate = false},
                .policy = gives(next),
                .window = {},
                .current = two_layers,
                .topology = {},
                .history = {},
                .expert_bytes = 1,
                .max_receive = 1,
                .costs = {}};
  task.window.load = {1, 2, 4, {50, 50, 1, 1, 50, 50, 1, 1}};
  task.window.rank_loads = rank_loads(two_layers, task.window.load);
  const PlanResult result = make_plan(task);
  ASSERT_EQ(result.kind, PlanResult::Kind::kPlan) << result.why;
  EXPECT_EQ(result.logical, (std::vector<int32_t>{0, 1, 2, 3, 0, 2, 1, 3}));
  EXPECT_EQ(result.moves, 2);
  EXPECT_EQ(result.left_out,
            (std::vector<std::string>{"layer 0: a rank would need 2 spares, it has 1"}));
}

// A layer in which a plan brings nothing does not move because it pays in another.
TEST(Planner, EachLayerMustRepayItsOwnMoves) {
  const Placement two_layers(2, 4, {2, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
  const Placement next(2, 4, {2, 2}, {0, 2, 1, 3, 0, 2, 1, 3});
  PlanTask task{.policy = gives(next),
                .current = two_layers,
                .expert_bytes = 1,
                .max_receive = 2,
                .costs = {.step_seconds = 1}};
  task.window.load = {1, 2, 4, {50, 50, 1, 1, 50, 1, 50, 1}};
  task.window.rank_loads = rank_loads(two_layers, task.window.load);
  const PlanResult result = make_plan(task);
  ASSERT_EQ(result.kind, PlanResult::Kind::kPlan) << result.why;
  EXPECT_EQ(result.logical, (std::vector<int32_t>{0, 2, 1, 3, 0, 1, 2, 3}));
  EXPECT_EQ(result.moves, 2);
  EXPECT_EQ(result.bytes, 2);
  EXPECT_DOUBLE_EQ(result.predicted, 100.0 / 51 - 1);
}

// Where reading weights is all that costs, a plan that levels rows saves no time.
TEST(Planner, TheGateJudgesInTimeWhereThereIsACost) {
  const Placement together(1, 4, {2, 2}, {0, 1, 2, 3}), apart(1, 4, {2, 2}, {0, 2, 1, 3});
  PlanTask task{.policy = gives(apart),
                .current = together,
                .expert_bytes = 1,
                .max_receive = 2,
                .costs = {.step_seconds = 1}};
  task.window.load = {1, 1, 4, {50, 50, 1, 1}};
  task.window.rank_loads = rank_loads(together, task.window.load);
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kPlan);
  task.cost = std::make_shared<const CostModel>(
      std::vector<CostPoint>{{1, 1'000'000'000}, {64, 1'000'000'001}});
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kRejected);
  // In single steps half of the experts have rows at a time: the same two, which share a rank.
  task.window.single = {2, 1, 4, {25, 25, 0, 0, 25, 25, 0, 0}};
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kPlan);
}

// Ranks that have equally many rows are not level where one is half as fast.
TEST(Planner, ASlowRankIsGivenLess) {
  const Placement even = Placement::linear(1, 8, 2);
  PlanTask task{.policy = make_policy("trim"),
                .current = even,
                .expert_bytes = 1,
                .max_receive = 8,
                .costs = {.step_seconds = 1}};
  task.config.split = SplitRule::kTime;
  task.window.load = {1, 1, 8, std::vector<int64_t>(8, 1000)};
  task.window.rank_loads = rank_loads(even, task.window.load);
  const std::vector<CostPoint> points = {{1, 1'000'000}, {1000, 1'000'000'000}};
  task.cost = std::make_shared<const CostModel>(points);
  EXPECT_EQ(make_plan(task).kind, PlanResult::Kind::kNothing) << "level";
  // No slot is free: experts can't leave the slow rank, so a plan can bring nothing.
  task.cost = std::make_shared<const CostModel>(points, std::vector<int32_t>{1000, 500});
  EXPECT_EQ(make_plan(task).why, "the policy moves nothing");
  // With slots to spare the fast rank has a replica of what the slow one holds.
  task.current = Placement(1, 8, {6, 6}, {0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 4, 5});
  task.window.rank_loads = rank_loads(task.current, task.window.load);
  const PlanResult result = make_plan(task);
  ASSERT_EQ(result.kind, PlanResult::Kind::kPlan) << result.why;
  const Placement next = task.current.with(result.logical, 1);
  const Serving serving = serving_of(task.config, {}, task.cost.get());
  EXPECT_LE(served_pars(next, 0, task.window.load, 0, serving)[0], 1.05);
}

}  // namespace
}  // namespace trimtab
