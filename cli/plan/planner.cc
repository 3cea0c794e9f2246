// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/planner.h"

#include <fmt/format.h>

#include "trimtab/error.h"

namespace trimtab::cli {

PlacementFile starting_placement(const PlannerOptions& options, const Recording& loads) {
  if (options.current.empty()) {
    check_slots(options.ranks, options.slots);
    const std::vector<int> slots(options.ranks, options.slots);
    return {default_placement(loads.load.num_layers, loads.load.num_experts, slots),
            loads.layer_ids,
            {}};
  }
  PlacementFile file =
      read_placement_for(options.current, options.current_format, options.ranks, &loads);
  file.layer_ids = common_layer_ids(loads, file, options.current);
  const Placement& current = file.placement;
  for (int rank = 0; rank < current.num_ranks() && options.slots > 0; ++rank) {
    if (current.slots_of_rank(rank) == options.slots) continue;
    throw InvalidArgument(
        fmt::format("--slots {}, but rank {} of {} has {} slots; a plan keeps them", options.slots,
                    rank, options.current, current.slots_of_rank(rank)));
  }
  return file;
}

Problem problem_of(const PlannerOptions& options, const Load& load, const Placement& current,
                   const ServedBy& served, const TokenSample* tokens) {
  Problem problem{.load = load, .current = current};
  problem.topology = topology_of(options.wires, current.num_ranks());
  problem.num_groups = options.wires.groups;
  problem.rules = parse_node_rules(options.wires.rules);
  problem.limits = options.limits;
  problem.expert_bytes = options.expert_bytes;
  problem.split = served.sharing;
  problem.cost = served.serving().cost;
  problem.tokens = tokens;
  problem.wire_slack = options.wire_slack;
  return problem;
}

}  // namespace trimtab::cli
