// SPDX-License-Identifier: Apache-2.0
#include "trimtab/node_rules.h"

#include <gtest/gtest.h>

#include "policy/testing.h"
#include "trimtab/error.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

constexpr NodeRules kGroups{.groups_on_nodes = true};
constexpr NodeRules kEven{.even_replicas = true};
constexpr NodeRules kAll{.all_experts_on_nodes = true};

TEST(NodeRules, HaveNames) {
  const std::vector<std::string> names = {"even", "all"};
  const NodeRules rules = parse_node_rules(names);
  EXPECT_FALSE(rules.groups_on_nodes);
  EXPECT_EQ(names_of(rules), names);
  const std::vector<std::string> unknown = {"node"};
  EXPECT_THROW(parse_node_rules(unknown), InvalidArgument);
}

TEST(NodeRules, SayWhatIsBrokenAndWhere) {
  const std::vector<int32_t> first = equal_slots(2, 4);
  const Topology topology{.node_of_rank = {0, 1}};
  const auto broken = [&](const NodeRules& rules, const std::vector<int32_t>& placement) {
    return broken_rule(rules, 2, 4, placement, first, topology);
  };
  EXPECT_EQ(broken(kGroups, {0, 1, 0, 1, 2, 3, 2, 3}), "");
  EXPECT_EQ(broken(kGroups, {0, 1, 0, 3, 2, 3, 2, 3}),
            "expert 3 of group 1 is on node 0, others of its group are on node 1");
  EXPECT_EQ(broken(kEven, {0, 1, 2, 3, 0, 1, 2, 3}), "");
  EXPECT_EQ(broken(kEven, {0, 0, 1, 2, 0, 1, 2, 3}), "");
  EXPECT_EQ(broken(kEven, {0, 0, 1, 2, 1, 2, 3, 3}),
            "expert 0 has 2 replicas on node 0 and 0 on node 1");
  EXPECT_EQ(broken(kAll, {0, 1, 2, 3, 3, 2, 1, 0}), "");
  EXPECT_EQ(broken(kAll, {0, 1, 2, 3, 3, 2, 1, 1}), "expert 0 has no replica on node 1");
  EXPECT_EQ(broken_rule(kAll, 2, 4, std::vector<int32_t>{0, 1, 2, 3, 3, 2, 1, 1}, first, {}), "");
}

TEST(NodeRules, ThatNoPlacementCanKeepToAreRefused) {
  const std::vector<int32_t> first = equal_slots(4, 2);
  const Topology topology = Topology::even(4, 2), uneven{.node_of_rank = {0, 1, 1, 1}};
  const auto reason = [&](const NodeRules& rules, int groups, int experts, const Topology& with) {
    try {
      check_node_rules(rules, groups, experts, first, with);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(reason(kGroups, 2, 8, topology), "");
  EXPECT_EQ(reason(kGroups, 1, 8, topology),
            "the nodes have slots for 0 whole groups of 8 experts, the rule groups needs slots for "
            "1");
  EXPECT_EQ(reason(kAll, 1, 4, topology), "");
  EXPECT_EQ(reason(kAll, 1, 5, topology), "the rule all needs 5 slots on each node, node 0 has 4");
  EXPECT_EQ(reason(kEven, 1, 5, topology), "");
  EXPECT_EQ(reason(kEven, 1, 5, uneven),
            "the rule even needs nodes of equally many slots; node 0 has 2, node 1 has 6");
  EXPECT_NE(reason({.groups_on_nodes = true, .even_replicas = true}, 2, 8, topology), "");
  EXPECT_EQ(reason(kAll, 1, 5, {}), "");  // one node
}

TEST(NodeRules, AreRefusedByPoliciesThatKnowNone) {
  const Load load{1, 1, 8, {9, 8, 7, 6, 5, 4, 3, 2}};
  const Placement current = default_placement(1, 8, {3, 3, 3, 3});
  Problem problem{.load = load,
                  .current = current,
                  .topology = Topology::even(4, 2),
                  .num_groups = 4,
                  .rules = kGroups};
  for (const std::string_view name : policy_names()) {
    SCOPED_TRACE(name);
    const auto policy = make_policy(name);
    if (name == "trim" || name == "deepseek") {
      const Plan plan = policy->rebalance(problem);
      EXPECT_EQ(broken_rule(kGroups, 4, 8, plan.placement.logical(0), current.first_slots(),
                            problem.topology),
                "");
    } else {
      EXPECT_THROW(policy->rebalance(problem), InvalidArgument);
    }
  }
  problem.rules = kEven;
  EXPECT_THROW(make_policy("deepseek")->rebalance(problem), InvalidArgument);
  problem.rules = kGroups;
  problem.num_groups = 1;  // one group on two nodes: no slots for it
  EXPECT_THROW(make_policy("deepseek")->rebalance(problem), InvalidArgument);
  problem.topology = {};
  EXPECT_NO_THROW(make_policy("swift")->rebalance(problem));
}

}  // namespace
}  // namespace trimtab
