// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/rule_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "base/random.h"
#include "policy/testing.h"
#include "policy/trim/mutable_layer.h"
#include "trimtab/error.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

constexpr NodeRules kGroups{.groups_on_nodes = true};
constexpr NodeRules kEven{.even_replicas = true};
constexpr NodeRules kAll{.all_experts_on_nodes = true};
constexpr NodeRules kEvenAndAll{.even_replicas = true, .all_experts_on_nodes = true};

// Random loads of a window and two runs.
std::vector<std::vector<double>> random_window(int experts, uint32_t seed) {
  Random random(seed);
  std::vector<std::vector<double>> loads(3, std::vector<double>(cells(experts)));
  for (int e = 0; e < experts; ++e) {
    loads[1][cells(e)] = 1 + random.below(100);
    loads[2][cells(e)] = 1 + random.below(100);
    loads[0][cells(e)] = loads[1][cells(e)] + loads[2][cells(e)];
  }
  return loads;
}

struct SmallCase {
  NodeRules rules;
  int experts, num_groups;
};

// The least sum of peaks of all placements on 4 ranks of 2 slots on 2 nodes that keep to the rules.
double least_by_enumeration(const SmallCase& one, const std::vector<std::vector<double>>& loads,
                            const Topology& topology) {
  const std::vector<int32_t> first = equal_slots(4, 2);
  double least = std::numeric_limits<double>::infinity();
  std::vector<int32_t> placement(8);
  const std::function<void(size_t)> fill = [&](size_t slot) {
    if (slot < 8) {
      // Within a rank in ascending order, none twice.
      for (int32_t e = slot % 2 == 0 ? 0 : placement[slot - 1] + 1; e < one.experts; ++e) {
        placement[slot] = e;
        fill(slot + 1);
      }
      return;
    }
    if (std::set<int32_t>(placement.begin(), placement.end()).size() != cells(one.experts) ||
        !broken_rule(one.rules, one.num_groups, one.experts, placement, first, topology).empty())
      return;
    const MutableLayer layer(SlotRanges(first), topology, one.experts, loads, {}, placement);
    least = std::min(least, layer.window_peak() + layer.runs_peak());
  };
  fill(0);
  return least;
}

TEST(RuleSearch, FindsTheBestOfAllPlacementsThatKeepToTheRules) {
  const std::vector<int32_t> first = equal_slots(4, 2);
  const Topology topology{.node_of_rank = {0, 1, 0, 1}};
  const std::vector<SmallCase> cases = {{kGroups, 6, 2}, {kGroups, 6, 3},    {kGroups, 5, 5},
                                        {kEven, 6, 1},   {kEven, 5, 1},      {kAll, 4, 1},
                                        {kAll, 3, 1},    {kEvenAndAll, 3, 1}};
  int optimal = 0, tried = 0;
  for (const SmallCase& one : cases) {
    for (uint32_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(testing::Message()
                   << one.experts << " experts, " << one.num_groups << " groups, seed " << seed);
      const std::vector<std::vector<double>> loads = random_window(one.experts, seed);
      const RuleTask task{.slots = SlotRanges(first),
                          .topology = topology,
                          .num_experts = one.experts,
                          .num_groups = one.num_groups,
                          .rules = one.rules,
                          .loads = loads,
                          .current = {},
                          .steps = 5'000};
      for (const bool search : {false, true}) {
        const std::vector<int32_t> found = search ? search_by_rules(task) : first_by_rules(task);
        EXPECT_EQ(broken_rule(one.rules, one.num_groups, one.experts, found, first, topology), "");
        EXPECT_EQ(std::set<int32_t>(found.begin(), found.end()).size(), cells(one.experts));
        for (size_t s = 0; s < 8; s += 2) EXPECT_NE(found[s], found[s + 1]);
        if (!search) continue;
        const double least = least_by_enumeration(one, loads, topology);
        const MutableLayer layer(SlotRanges(first), topology, one.experts, loads, {}, found);
        const double cost = layer.window_peak() + layer.runs_peak();
        EXPECT_GE(cost, least - 1e-6);
        EXPECT_LE(cost, least * 1.03);
        ++tried;
        optimal += cost <= least + 1e-6 ? 1 : 0;
      }
    }
  }
  EXPECT_GE(optimal, tried * 8 / 10) << "of " << tried;
}

Load random_load(int steps, int layers, int experts, uint32_t seed) {
  std::mt19937 random(seed);
  Load load{steps, layers, experts, {}};
  for (int i = 0; i < steps * layers * experts; ++i)
    load.counts.push_back(10 + static_cast<int64_t>(random() % 100) * (i % 7));
  return load;
}

TEST(RuleSearch, TrimKeepsToTheRulesAtRealSizesAndIsNearlyAsLevelAsWithout) {
  const Load load = random_load(20, 1, 64, 3);
  struct Case {
    NodeRules rules;
    int slots;
  };
  for (const auto& [rules, slots] : {Case{kGroups, 9}, {kEven, 9}, {kAll, 17}, {kEvenAndAll, 17}}) {
    SCOPED_TRACE(names_of(rules)[0]);
    const Placement current = default_placement(1, 64, std::vector<int>(8, slots));
    Problem problem{
        .load = load, .current = current, .topology = Topology::even(8, 2), .num_groups = 8};
    const Plan without = make_policy("trim")->rebalance(problem);
    problem.rules = rules;
    const Plan plan = make_policy("trim")->rebalance(problem);
    EXPECT_EQ(broken_rule(rules, 8, 64, plan.placement.logical(0), plan.placement.first_slots(),
                          problem.topology),
              "");
    EXPECT_EQ(plan.duplicates[0], 0);
    EXPECT_LE(plan.layers[0].par_step_after, without.layers[0].par_step_after * 1.04);
    // A second plan for the same loads moves little, and keeps to the rules within limits.
    Problem again{.load = load,
                  .current = plan.placement,
                  .topology = problem.topology,
                  .num_groups = 8,
                  .rules = rules,
                  .history = &plan.history};
    EXPECT_LE(make_policy("trim")->rebalance(again).moves.size(), 4U);
    const Load other = random_load(20, 1, 64, 9);
    Problem limited{.load = other,
                    .current = plan.placement,
                    .topology = problem.topology,
                    .limits = {.max_bytes = 12},
                    .expert_bytes = 1,
                    .num_groups = 8,
                    .rules = rules};
    const Plan few = make_policy("trim")->rebalance(limited);
    EXPECT_LE(few.moves.size(), 12U);
    EXPECT_LE(few.mean(&LayerPrediction::par_step_after),
              few.mean(&LayerPrediction::par_step_before));
  }
}

TEST(RuleSearch, LimitsThatAllowNoPlacementByTheRulesAreAnError) {
  const Load load = random_load(4, 1, 16, 1);
  const Placement current = default_placement(1, 16, {6, 6, 6, 6});
  Problem problem{.load = load,
                  .current = current,
                  .topology = Topology::even(4, 2),
                  .limits = {.max_moves_per_layer = 1},
                  .num_groups = 4,
                  .rules = kGroups};
  try {
    make_policy("trim")->rebalance(problem);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(std::string(error.what()).find("limits on moves allow no placement") !=
                std::string::npos)
        << error.what();
  }
  problem.limits = {};
  problem.split = SplitRule::kSplit;
  EXPECT_THROW(make_policy("trim")->rebalance(problem), InvalidArgument);
}

TEST(RuleSearch, LessTrafficKeepsToTheRulesToo) {
  const Load load = random_load(8, 1, 32, 2);
  std::mt19937 random(4);
  TokenSample tokens{.num_layers = 1, .num_experts = 32, .top_k = 4};
  for (int t = 0; t < 600; ++t) {
    std::set<int32_t> picks;
    const int topic = static_cast<int>(random() % 4);
    while (picks.size() < 4) picks.insert(static_cast<int32_t>(random() % 8) * 4 + topic);
    tokens.ids.insert(tokens.ids.end(), picks.begin(), picks.end());
  }
  const Placement current = default_placement(1, 32, std::vector<int>(8, 6));
  Problem problem{.load = load,
                  .current = current,
                  .topology = Topology::even(8, 2),
                  .num_groups = 8,
                  .rules = kEven};
  const Plan level = make_policy("trim")->rebalance(problem);
  problem.tokens = &tokens;
  problem.wire_slack = 0.03;
  const Plan plan = make_policy("trim")->rebalance(problem);
  EXPECT_EQ(broken_rule(kEven, 8, 32, plan.placement.logical(0), plan.placement.first_slots(),
                        problem.topology),
            "");
  EXPECT_LT(plan.layers[0].node_copies_after,
            0.95 * copies_between_nodes(level.placement.logical(0), level.placement.first_slots(),
                                        problem.topology.node_of_rank, tokens, 0));
  problem.topology = Topology::with_two_prices(problem.topology.node_of_rank, 1, 8);
  const Plan priced = make_policy("trim")->rebalance(problem);
  EXPECT_EQ(broken_rule(kEven, 8, 32, priced.placement.logical(0), priced.placement.first_slots(),
                        problem.topology),
            "");
}

}  // namespace
}  // namespace trimtab
