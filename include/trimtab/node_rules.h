// SPDX-License-Identifier: Apache-2.0
// What a placement must keep to on several nodes, whatever it costs in level load.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trimtab/topology.h"

namespace trimtab {

struct NodeRules {
  // All replicas of the experts of one group of the router are on one node. With group-limited
  // routing a token then visits no more nodes than it picks groups.
  bool groups_on_nodes = false;
  // Replicas are spread evenly: the numbers that an expert has on any two nodes differ by at most
  // one.
  bool even_replicas = false;
  // Every node has a replica of every expert, so that no token needs to leave its node.
  bool all_experts_on_nodes = false;

  bool any() const { return groups_on_nodes || even_replicas || all_experts_on_nodes; }
  bool operator==(const NodeRules&) const = default;
};

// The rules by their names: groups, even, all. Throws InvalidArgument for another name, with the
// names.
NodeRules parse_node_rules(std::span<const std::string> names);
std::vector<std::string> names_of(const NodeRules& rules);

// Says which rule a layer's placement [slots] breaks, and where: "expert 5 of group 1 is on node 2,
// others of its group on node 0". Empty where all hold, as on one node. num_groups: groups of
// neighbouring experts, which divide the experts.
std::string broken_rule(const NodeRules& rules, int num_groups, int num_experts,
                        std::span<const int32_t> logical, std::span<const int32_t> first_slots,
                        const Topology& topology);

// Throws InvalidArgument with the reason when no placement with these slots can keep to the rules,
// or none that this library can make. first_slots: [ranks + 1].
void check_node_rules(const NodeRules& rules, int num_groups, int num_experts,
                      std::span<const int32_t> first_slots, const Topology& topology);

}  // namespace trimtab
