// SPDX-License-Identifier: Apache-2.0
// The search for a level placement of one layer that keeps to the rules for nodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/node_rules.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/topology.h"

namespace trimtab {

struct RuleTask {
  SlotRanges slots;
  const Topology& topology;  // several nodes, for which check_node_rules() has passed
  int num_experts = 0;
  int num_groups = 1;
  const NodeRules& rules;
  int layer = 0;
  // As in MutableLayer.
  const std::vector<std::vector<double>>& loads;
  double move_price = 0;                    // PAR that a move from `current` must gain
  std::span<const int32_t> current;         // [slots]; empty: moves are not counted
  int64_t steps = 0;                        // exchanges that are tried
  const std::atomic<bool>* stop = nullptr;  // see Problem::stop
};

// A placement of the layer that keeps to the rules, made without search: [slots]. Throws
// InvalidArgument where it finds none.
std::vector<int32_t> first_by_rules(const RuleTask& task);

// The best placement by peaks and price of moves that the search finds, from first_by_rules() and
// from `current` where that keeps to the rules. The result depends on nothing but the arguments.
std::vector<int32_t> search_by_rules(const RuleTask& task);

}  // namespace trimtab
