// SPDX-License-Identifier: Apache-2.0
#include "trimtab/node_rules.h"

#include <algorithm>

#include "base/cat.h"
#include "policy/matrix.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

struct RuleName {
  const char* name;
  bool NodeRules::* rule;
};
constexpr RuleName kRuleNames[] = {{"groups", &NodeRules::groups_on_nodes},
                                   {"even", &NodeRules::even_replicas},
                                   {"all", &NodeRules::all_experts_on_nodes}};

std::vector<int32_t> slots_of_nodes(std::span<const int32_t> first_slots,
                                    const Topology& topology) {
  const SlotRanges slots(first_slots);
  std::vector<int32_t> sums(cells(topology.num_nodes()));
  for (int rank = 0; rank < slots.num_ranks(); ++rank)
    sums[cells(topology.node(rank))] += slots.count(rank);
  return sums;
}

}  // namespace

NodeRules parse_node_rules(std::span<const std::string> names) {
  NodeRules rules;
  for (const std::string& name : names) {
    const auto* found = std::ranges::find(kRuleNames, name, &RuleName::name);
    if (found == std::end(kRuleNames)) {
      throw InvalidArgument(cat("no rule for nodes '", name, "'; there are groups, even, all"));
    }
    rules.*found->rule = true;
  }
  return rules;
}

std::vector<std::string> names_of(const NodeRules& rules) {
  std::vector<std::string> names;
  for (const RuleName& one : kRuleNames) {
    if (rules.*one.rule) names.emplace_back(one.name);
  }
  return names;
}

std::string broken_rule(const NodeRules& rules, int num_groups, int num_experts,
                        std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                        const Topology& topology) {
  const int nodes = topology.num_nodes();
  if (nodes < 2 || !rules.any()) return {};
  const SlotRanges slots(first_slots);
  Matrix<int32_t> on_node(num_experts, nodes, 0);
  for (int rank = 0; rank < slots.num_ranks(); ++rank) {
    for (const int32_t e : slots.of(rank, logical)) ++on_node(e, topology.node(rank));
  }
  std::vector<int32_t> node_of_group(cells(num_groups), -1);
  const int in_group = num_experts / num_groups;
  for (int e = 0; e < num_experts; ++e) {
    const std::span<const int32_t> replicas = on_node[e];
    const auto [least, most] = std::ranges::minmax_element(replicas);
    if (rules.all_experts_on_nodes && *least == 0)
      return cat("expert ", e, " has no replica on node ", least - replicas.begin());
    if (rules.even_replicas && *most > *least + 1) {
      return cat("expert ", e, " has ", *most, " replicas on node ", most - replicas.begin(),
                 " and ", *least, " on node ", least - replicas.begin());
    }
    int32_t& node = node_of_group[cells(e / in_group)];
    for (int n = 0; n < nodes && rules.groups_on_nodes; ++n) {
      if (replicas[cells(n)] == 0) continue;
      if (node < 0) node = n;
      if (node != n) {
        return cat("expert ", e, " of group ", e / in_group, " is on node ", n,
                   ", others of its group are on node ", node);
      }
    }
  }
  return {};
}

void check_node_rules(const NodeRules& rules, int num_groups, int num_experts,
                      std::span<const int32_t> first_slots, const Topology& topology) {
  const int nodes = topology.num_nodes();
  if (nodes < 2 || !rules.any()) return;
  if (rules.groups_on_nodes && (rules.even_replicas || rules.all_experts_on_nodes)) {
    throw InvalidArgument(
        "the rule groups keeps all replicas of an expert on one node, the rules even and all "
        "spread "
        "them over the nodes; choose");
  }
  const std::vector<int32_t> slots = slots_of_nodes(first_slots, topology);
  const auto [least, most] = std::ranges::minmax_element(slots);
  if (rules.all_experts_on_nodes && *least < num_experts) {
    throw InvalidArgument(cat("the rule all needs ", num_experts, " slots on each node, node ",
                              least - slots.begin(), " has ", *least));
  }
  if (rules.even_replicas && *least != *most) {
    throw InvalidArgument(cat("the rule even needs nodes of equally many slots; node ",
                              least - slots.begin(), " has ", *least, ", node ",
                              most - slots.begin(), " has ", *most));
  }
  if (!rules.groups_on_nodes) return;
  const int in_group = num_experts / num_groups;
  int groups = 0;
  for (const int32_t n : slots) groups += n / in_group;
  if (groups < num_groups) {
    throw InvalidArgument(cat("the nodes have slots for ", groups, " whole groups of ", in_group,
                              " experts, the rule groups needs slots for ", num_groups));
  }
}

}  // namespace trimtab
