// SPDX-License-Identifier: Apache-2.0
// trim and optimal as a whole: what always holds, over many small shapes and extreme loads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "load/replicas.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/policy.h"
#include "trimtab/rank_loads.h"

namespace trimtab {
namespace {

Load random_load(std::mt19937& random, int64_t steps, int layers, int experts) {
  constexpr int64_t kCounts[] = {0, 1, (int64_t{1} << 24) + 1, int64_t{1} << 53};
  Load load{.num_steps = steps, .num_layers = layers, .num_experts = experts, .counts = {}};
  for (int64_t i = 0; i < steps * layers * experts; ++i)
    load.counts.push_back(kCounts[random() % 4]);
  return load;
}

// Moves and receive peaks counted from scratch, one expert at a time.
void expect_counts_right(const Placement& before, const Plan& plan) {
  int64_t moves = 0;
  for (int l = 0; l < before.num_layers(); ++l) {
    int64_t peak = 0;
    int64_t duplicates = 0;
    for (int r = 0; r < before.num_ranks(); ++r) {
      std::map<int32_t, int> had, has;
      for (int s = before.first_slot(r); s < before.first_slot(r + 1); ++s) {
        ++had[before.logical(l)[s]];
        ++has[plan.placement.logical(l)[s]];
      }
      int64_t received = 0;
      for (const auto& [expert, replicas] : has) {
        received += had.count(expert) == 0 ? 1 : 0;
        duplicates += replicas - 1;
        // An expert that stays keeps its slots: as many of them as it still has replicas.
        int kept = 0;
        for (int s = before.first_slot(r); s < before.first_slot(r + 1); ++s) {
          const auto i = static_cast<size_t>(s);
          kept += before.logical(l)[i] == expert && plan.placement.logical(l)[i] == expert ? 1 : 0;
        }
        EXPECT_EQ(kept, std::min(replicas, had.count(expert) != 0 ? had[expert] : 0));
      }
      peak = std::max(peak, received);
      moves += received;
    }
    EXPECT_EQ(plan.receive_peak[l], peak);
    EXPECT_EQ(plan.duplicates[l], duplicates);
  }
  EXPECT_EQ(static_cast<int64_t>(plan.moves.size()), moves);
  for (const Move& move : plan.moves) {
    EXPECT_EQ(plan.placement.logical(move.layer)[move.slot], move.expert);
  }
}

// PAR from scratch, in long double, expert by expert.
double window_par(const Placement& placement, const Load& load, int layer) {
  std::vector<long double> rank(placement.num_ranks(), 0);
  long double total = 0;
  for (int e = 0; e < load.num_experts; ++e) {
    long double sum = 0;
    for (int64_t t = 0; t < load.num_steps; ++t)
      sum += static_cast<long double>(load.at(t, layer)[e]);
    total += sum;
    const std::span<const int32_t> slots = placement.logical(layer);
    const auto replicas = std::count(slots.begin(), slots.end(), e);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (slots[s] != e) continue;
      rank[static_cast<size_t>(placement.rank_of_slot(static_cast<int>(s)))] +=
          sum / static_cast<long double>(replicas);
    }
  }
  if (total == 0) return 1;
  return static_cast<double>(*std::max_element(rank.begin(), rank.end()) *
                             static_cast<long double>(rank.size()) / total);
}

int64_t forced_duplicates(const Placement& placement) {
  int64_t forced = 0;
  for (int r = 0; r < placement.num_ranks(); ++r) {
    forced += std::max(0, placement.slots_of_rank(r) - placement.num_experts());
  }
  return forced;
}

void expect_sound(const Policy& policy, const Problem& problem) {
  const Plan plan = policy.rebalance(problem);
  expect_counts_right(problem.current, plan);
  for (int l = 0; l < problem.load.num_layers; ++l) {
    const LayerPrediction& p = plan.layers[l];
    EXPECT_NEAR(p.par_before, window_par(problem.current, problem.load, l), 1e-9);
    EXPECT_NEAR(p.par_after, window_par(plan.placement, problem.load, l), 1e-9);
    EXPECT_LE(p.par_step_after, p.par_step_before + 1e-12);
    EXPECT_GE(p.par_step_after_high, p.par_step_after);
    EXPECT_LE(p.bound_exact, p.bound_equal);
    EXPECT_LE(p.bound_equal, p.par_after * (1 + 1e-9));
    EXPECT_EQ(plan.duplicates[l], forced_duplicates(problem.current));
    const PlanLimits& limits = problem.limits;
    EXPECT_LE(plan.receive_peak[l], limits.max_receive_per_rank);
    EXPECT_LE(std::count_if(plan.moves.begin(), plan.moves.end(),
                            [&](const Move& m) { return m.layer == l; }),
              limits.max_moves_per_layer);
  }
  const Plan again = policy.rebalance(problem);
  EXPECT_EQ(again.moves, plan.moves);
}

TEST(Trim, IsSoundForAllSmallShapesAndExtremeLoads) {
  std::mt19937 random(11);
  const std::unique_ptr<Policy> policies[] = {
      make_policy("trim", {.preset = "fast"}),
      make_policy("trim", {.preset = "fast", .move_price = 0.01})};
  for (int experts = 1; experts <= 16; ++experts) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int slots = 1; slots <= 4; ++slots) {
        std::vector<int> slots_per_rank(ranks, slots);
        if (random() % 3 == 0) ++slots_per_rank[0];
        const int total = std::accumulate(slots_per_rank.begin(), slots_per_rank.end(), 0);
        if (total < experts) {
          EXPECT_THROW(default_placement(2, experts, slots_per_rank), InvalidArgument);
          continue;
        }
        SCOPED_TRACE(testing::Message() << experts << " experts, " << ranks << " ranks of " << slots
                                        << ", slots " << total);
        const Placement current = default_placement(2, experts, slots_per_rank);
        const Load load = random_load(random, 1 + static_cast<int64_t>(random() % 3), 2, experts);
        PlanLimits limits;
        if (random() % 2 == 0) limits.max_moves_per_layer = static_cast<int64_t>(random() % 6);
        if (random() % 3 == 0) limits.max_receive_per_rank = 1;
        expect_sound(*policies[random() % 2], {.load = load, .current = current, .limits = limits});
      }
    }
  }
}

TEST(Trim, LargerShapesWithSeveralStepsAreSound) {
  std::mt19937 random(12);
  for (const auto& [experts, ranks, slots] :
       {std::tuple{24, 8, 4}, {40, 10, 9}, {64, 32, 3}, {9, 3, 20}}) {
    SCOPED_TRACE(testing::Message() << experts << " experts on " << ranks << "x" << slots);
    const Placement current = default_placement(1, experts, std::vector<int>(ranks, slots));
    Load load{.num_steps = 24, .num_layers = 1, .num_experts = experts, .counts = {}};
    for (int i = 0; i < 24 * experts; ++i)
      load.counts.push_back(static_cast<int64_t>(random() % 1000));
    for (const char* preset : {"fast", "balanced"}) {
      expect_sound(*make_policy("trim", {.preset = preset}), {.load = load, .current = current});
    }
    expect_sound(*make_policy("trim"),
                 {.load = load, .current = current, .limits = {.max_moves_per_layer = 7}});
    expect_sound(*make_policy("trim"),
                 {.load = load, .current = current, .limits = {.max_receive_per_rank = 2}});
  }
}

TEST(Trim, NoLoadAndLevelLoadMoveNothing) {
  const Placement current = default_placement(1, 8, {3, 3, 3});
  const Load nothing{
      .num_steps = 2, .num_layers = 1, .num_experts = 8, .counts = std::vector<int64_t>(16, 0)};
  const Load no_steps{.num_steps = 0, .num_layers = 1, .num_experts = 8, .counts = {}};
  const Placement linear = default_placement(1, 8, {2, 2, 2, 2});
  const Load level{
      .num_steps = 1, .num_layers = 1, .num_experts = 8, .counts = {5, 3, 4, 4, 8, 0, 1, 7}};
  for (const char* name : {"trim", "optimal"}) {
    const std::unique_ptr<Policy> policy = make_policy(name);
    EXPECT_TRUE(policy->rebalance({.load = nothing, .current = current}).moves.empty());
    EXPECT_TRUE(policy->rebalance({.load = no_steps, .current = current}).moves.empty());
    EXPECT_TRUE(policy->rebalance({.load = level, .current = linear}).moves.empty());
  }
}

// 3 layers of steps whose hot experts are drawn anew from `topics`.
Load topic_load(std::mt19937& random, int64_t steps, int experts,
                const std::vector<std::vector<double>>& topics) {
  Load load{.num_steps = steps, .num_layers = 1, .num_experts = experts, .counts = {}};
  for (int64_t t = 0; t < steps; ++t) {
    const std::vector<double>& topic = topics[random() % topics.size()];
    for (int e = 0; e < experts; ++e) {
      load.counts.push_back(std::poisson_distribution<int64_t>(topic[e])(random));
    }
  }
  return load;
}

std::vector<std::vector<double>> draw_topics(std::mt19937& random, int count, int experts) {
  std::vector<std::vector<double>> topics(count);
  std::lognormal_distribution<double> draw(5, 1);
  for (auto& topic : topics) {
    for (int e = 0; e < experts; ++e) topic.push_back(draw(random));
  }
  return topics;
}

TEST(Trim, SteadyTopicsNeedOnePlanAndAChangeAnother) {
  std::mt19937 random(13);
  const std::unique_ptr<Policy> policy = make_policy("trim");
  const auto topics = draw_topics(random, 4, 64);
  const Placement start = default_placement(1, 64, std::vector<int>(8, 9));
  const Load first = topic_load(random, 64, 64, topics);
  const Plan plan = policy->rebalance({.load = first, .current = start});
  EXPECT_LT(plan.layers[0].par_step_after, 1.15);
  const Load same = topic_load(random, 64, 64, topics);
  const Plan steady =
      policy->rebalance({.load = same, .current = plan.placement, .history = &plan.history});
  EXPECT_LE(steady.moves.size(), 2U);
  EXPECT_EQ(steady.history.steps_seen, 128);
  const Plan forgetful = policy->rebalance({.load = same, .current = plan.placement});
  EXPECT_LE(forgetful.moves.size(), 16U) << "72 slots";
  const Load changed = topic_load(random, 64, 64, draw_topics(random, 4, 64));
  const Plan after =
      policy->rebalance({.load = changed, .current = steady.placement, .history = &steady.history});
  EXPECT_GT(after.moves.size(), 4U);
  EXPECT_LT(after.layers[0].par_step_after, after.layers[0].par_step_before - 0.1);
}

// Few moves bring nearly all that many do in a small layer, so that is what a first plan takes: it
// lies near the curve of PAR against moves, and does as well on later steps of the same topics as
// where moves are free.
TEST(Trim, AFirstPlanOfASmallLayerTakesFewMoves) {
  std::mt19937 random(29);
  const Placement start = default_placement(1, 32, std::vector<int>(4, 9));
  double moves = 0, free_moves = 0, later = 0, free_later = 0;
  for (int round = 0; round < 8; ++round) {
    const auto topics = draw_topics(random, 4, 32);
    const Load load = topic_load(random, 32, 32, topics), next = topic_load(random, 32, 32, topics);
    const auto later_par = [&](const Plan& plan) {
      return levelness(rank_loads(plan.placement, next, 0), 0).par_step_mean;
    };
    const Plan plan = make_policy("trim")->rebalance({.load = load, .current = start});
    const Plan free =
        make_policy("trim", {.move_price = 0})->rebalance({.load = load, .current = start});
    moves += static_cast<double>(plan.moves.size());
    free_moves += static_cast<double>(free.moves.size());
    later += later_par(plan);
    free_later += later_par(free);
  }
  EXPECT_LT(moves, 0.8 * free_moves);
  EXPECT_LT(later, free_later + 8 * 0.01);
}

// A layer whose peak has risen since the remembered episodes pays less for moves than one whose
// loads look as before: 0.018 and 0.064 PAR for a weight on every rank.
TEST(Trim, MovesCostLessOnceLoadsHaveDrifted) {
  std::mt19937 random(18);
  constexpr int kRanks = 8;
  const auto topics = draw_topics(random, 1, 64);
  const Placement start = default_placement(1, 64, std::vector<int>(kRanks, 9));
  const Load first = topic_load(random, 64, 64, topics);
  const Plan plan = make_policy("trim")->rebalance({.load = first, .current = start});
  const auto moves = [&](const Load& load, const Placement& current, std::optional<double> price) {
    return make_policy("trim", {.move_price = price})
        ->rebalance({.load = load, .current = current, .history = &plan.history})
        .moves;
  };
  // A fifth more for all experts of rank 0: its load, and the peak, rise by about as much.
  auto drifted_topics = topics;
  for (auto& topic : drifted_topics) {
    for (const int32_t e : plan.placement.logical(0).first(9)) topic[e] *= 1.2;
  }
  const Load drifted = topic_load(random, 64, 64, drifted_topics);
  const auto cheap = moves(drifted, plan.placement, 0.018 / kRanks);
  EXPECT_EQ(moves(drifted, plan.placement, std::nullopt), cheap);
  EXPECT_NE(moves(drifted, plan.placement, 0.064 / kRanks), cheap);
  // The first placement is bad for old and new loads alike, so it does not count as drift.
  const Load steady = topic_load(random, 64, 64, topics);
  const auto dear = moves(steady, start, 0.064 / kRanks);
  EXPECT_EQ(moves(steady, start, std::nullopt), dear);
  EXPECT_NE(moves(steady, start, 0.018 / kRanks), dear);
}

TEST(Trim, PlansOnEpisodesNotOnTheSum) {
  // Experts 0 and 1 are hot in turn, 2 and 3 together: only the steps tell which pair may share a
  // rank.
  const Load load{
      .num_steps = 2, .num_layers = 1, .num_experts = 4, .counts = {80, 0, 40, 40, 0, 80, 40, 40}};
  const Placement current(1, 4, {2, 2}, {0, 2, 1, 3});
  const Plan plan =
      make_policy("trim", {.move_price = 0})->rebalance({.load = load, .current = current});
  EXPECT_NEAR(plan.layers[0].par_before, 1, 1e-9);
  EXPECT_NEAR(plan.layers[0].par_step_before, 1.5, 1e-9);
  EXPECT_NEAR(plan.layers[0].par_step_after, 1, 1e-9);
}

// Two hot experts with two replicas each, and two of the others with two: all ranks have 165 of 660
// tokens. Giving each slot to the largest load per replica gives the hot ones three each, and with
// those no placement has a PAR below 1.27. A window of several steps finds it as one step does,
// with a history too.
TEST(Trim, ReplicasOfSeveralStepsFitTogether) {
  Load load{.num_steps = 0, .num_layers = 1, .num_experts = 8, .counts = {}};
  const std::vector<int64_t> step = {300, 300, 10, 10, 10, 10, 10, 10};
  const Placement start = default_placement(1, 8, std::vector<int>(4, 3));
  const std::unique_ptr<Policy> policy = make_policy("trim");
  for (const int64_t steps : {1, 4, 64}) {
    SCOPED_TRACE(steps);
    while (load.num_steps < steps) {
      load.counts.insert(load.counts.end(), step.begin(), step.end());
      ++load.num_steps;
    }
    const Plan plan = policy->rebalance({.load = load, .current = start});
    EXPECT_NEAR(plan.layers[0].par_after, 1, 1e-9);
    Load level{.num_steps = 1, .num_layers = 1, .num_experts = 8, .counts = {}};
    level.counts.assign(8, 1);
    const Plan before = policy->rebalance({.load = level, .current = start});
    const Plan later =
        policy->rebalance({.load = load, .current = before.placement, .history = &before.history});
    EXPECT_LT(later.layers[0].par_after, 1.05);
  }
}

TEST(Trim, ATimeBudgetIsKept) {
  std::mt19937 random(14);
  const Load load = topic_load(random, 64, 64, draw_topics(random, 4, 64));
  const Placement start = default_placement(1, 64, std::vector<int>(8, 9));
  for (const int64_t max_moves : {PlanLimits::kNone, int64_t{20}}) {
    const auto seconds = [&](std::optional<double> budget) {
      const auto begin = std::chrono::steady_clock::now();
      const Plan plan =
          make_policy("trim", {.preset = "deep", .time_budget_s = budget})
              ->rebalance(
                  {.load = load, .current = start, .limits = {.max_moves_per_layer = max_moves}});
      // How good a plan is that was cut short is the machine's business.
      EXPECT_LT(plan.layers[0].par_step_after, budget ? plan.layers[0].par_step_before : 1.3);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const double all = seconds(std::nullopt);
    double budgeted = seconds(0.05 * all);
    for (int again = 0; again < 2; ++again)
      budgeted = std::min(budgeted, seconds(0.05 * all));  // the core may be lost
    EXPECT_LT(budgeted, 0.4 * all) << "of " << all << " s, at most " << max_moves << " moves";
  }
}

TEST(Trim, RefusesBadOptions) {
  EXPECT_THROW(make_policy("trim", {.preset = "best"}), InvalidArgument);
  EXPECT_THROW(make_policy("trim", {.move_price = -1}), InvalidArgument);
  EXPECT_THROW(make_policy("trim", {.time_budget_s = 0}), InvalidArgument);
}

TEST(FlashLbExample, IsSolvedInSevenMoves) {
  const Load load{.num_steps = 1,
                  .num_layers = 1,
                  .num_experts = 8,
                  .counts = {600, 560, 120, 120, 20, 10, 10, 10}};
  const Placement current = default_placement(1, 8, std::vector<int>(8, 2));
  for (const char* name : {"trim", "optimal"}) {
    const Plan plan = make_policy(name)->rebalance({.load = load, .current = current});
    EXPECT_NEAR(plan.layers[0].par_after * 181.25, 560.0 / 3 + 10, 1e-9) << name;
    EXPECT_EQ(plan.moves.size(), 7U) << name;
    EXPECT_DOUBLE_EQ(plan.layers[0].bound_exact, 1.0);
  }
}

struct Golden {
  int ranks, slots;
  std::vector<int64_t> loads;
  double peak;
  int64_t moves;
};

TEST(Optimal, AgreesWithTheMilpSolver) {
  const std::vector<Golden> goldens = {
#include "policy/trim/optimal_golden.inc"
  };
  for (const Golden& golden : goldens) {
    const int experts = static_cast<int>(golden.loads.size());
    const Load load{
        .num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = golden.loads};
    const Placement current =
        default_placement(1, experts, std::vector<int>(golden.ranks, golden.slots));
    const Plan plan = make_policy("optimal")->rebalance({.load = load, .current = current});
    const double mean =
        static_cast<double>(std::accumulate(golden.loads.begin(), golden.loads.end(), int64_t{0})) /
        golden.ranks;
    EXPECT_NEAR(plan.layers[0].par_after * mean, golden.peak, 1e-6 * golden.peak)
        << testing::PrintToString(golden.loads);
    EXPECT_EQ(static_cast<int64_t>(plan.moves.size()), golden.moves)
        << testing::PrintToString(golden.loads);
    EXPECT_NEAR(plan.layers[0].bound_equal, plan.layers[0].par_after, 1e-5);
  }
}

// Whether every rank holds experts as evenly as its slots allow: none twice unless all are there.
bool no_needless_duplicates(const std::vector<int32_t>& placement,
                            const std::vector<int>& slots_per_rank, int experts) {
  auto at = placement.begin();
  for (const int slots : slots_per_rank) {
    for (int e = 0; e < experts; ++e) {
      const auto replicas = std::count(at, at + slots, e);
      if (replicas < slots / experts || replicas > (slots + experts - 1) / experts) return false;
    }
    at += slots;
  }
  return true;
}

// Every placement of the slots, one after the other.
double least_par(const Placement& shape, const Load& load) {
  std::vector<int32_t> placement(shape.num_slots(), 0);
  std::vector<int> slots_per_rank;
  for (int r = 0; r < shape.num_ranks(); ++r) slots_per_rank.push_back(shape.slots_of_rank(r));
  double best = 1e9;
  for (;;) {
    const std::vector<int32_t> replicas = replica_counts(placement, load.num_experts);
    if (std::find(replicas.begin(), replicas.end(), 0) == replicas.end() &&
        no_needless_duplicates(placement, slots_per_rank, load.num_experts)) {
      best = std::min(
          best, window_par(Placement(1, load.num_experts, slots_per_rank, placement), load, 0));
    }
    size_t digit = 0;
    while (digit < placement.size() && ++placement[digit] == load.num_experts)
      placement[digit++] = 0;
    if (digit == placement.size()) return best;
  }
}

TEST(Optimal, IsAsGoodAsTheBestOfAllPlacements) {
  std::mt19937 random(15);
  for (const auto& [experts, slots] : {std::pair{2, std::vector<int>{2, 2}},
                                       {3, {2, 2}},
                                       {3, {3, 2}},
                                       {4, {2, 2, 2}},
                                       {3, {1, 2, 3}},
                                       {4, {3, 3}}}) {
    for (int round = 0; round < 4; ++round) {
      Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
      for (int e = 0; e < experts; ++e)
        load.counts.push_back(static_cast<int64_t>(random() % 1000));
      const Placement current = default_placement(1, experts, slots);
      const Plan plan = make_policy("optimal")->rebalance({.load = load, .current = current});
      EXPECT_NEAR(plan.layers[0].par_after, least_par(current, load), 1e-6)
          << testing::PrintToString(load.counts);
    }
  }
}

TEST(Optimal, NoBoundIsAboveTheOptimumAndPairsRaiseSome) {
  std::mt19937 random(17);
  int raised = 0;
  for (int round = 0; round < 60; ++round) {
    const int experts = 5 + round % 4;
    const int ranks = 5 + round % 3;
    Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
    for (int e = 0; e < experts; ++e)
      load.counts.push_back(
          static_cast<int64_t>(std::exp(static_cast<double>(random() % 1000) * 0.009)));
    const Placement current = default_placement(1, experts, std::vector<int>(ranks, 2));
    const double optimum =
        make_policy("optimal")->rebalance({.load = load, .current = current}).layers[0].par_after;
    const LayerPrediction p =
        make_policy("trim")->rebalance({.load = load, .current = current}).layers[0];
    EXPECT_LE(p.bound_equal, optimum * (1 + 1e-9))
        << testing::PrintToString(load.counts) << " on " << ranks;
    EXPECT_LE(p.bound_exact, p.bound_equal);
    raised += p.bound_equal > p.bound_exact * 1.001 ? 1 : 0;
  }
  EXPECT_GT(raised, 0);
}

TEST(Optimal, RefusesWhatItCannotProve) {
  std::mt19937 random(16);
  Load load{.num_steps = 1, .num_layers = 1, .num_experts = 200, .counts = {}};
  for (int e = 0; e < 200; ++e) load.counts.push_back(static_cast<int64_t>(1 + random() % 100000));
  const Placement current = default_placement(1, 200, std::vector<int>(50, 6));
  EXPECT_THROW(make_policy("optimal")->rebalance({.load = load, .current = current}),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab
