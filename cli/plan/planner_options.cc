// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/planner_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "trimtab/error.h"

namespace trimtab::cli {

void add_planner(Command& command, PlannerOptions& options) {
  add_ranks(command, options.ranks, "Ranks that share the experts");
  command
      .number("--slots", options.slots,
              "Experts, replicas included, that each rank holds in a layer")
      .between(1, kMostSizes);
  add_current(command, options.current, options.current_format);
  add_nodes(command, options.wires);
  add_node_rules(command, options.wires, ", for deepseek and --node-rules groups");
  const auto limit = [&](const char* name, int64_t& value, const char* about) {
    return command.number(name, value, about).at_least(0);
  };
  limit("--max-moves", options.limits.max_moves_per_layer,
        "Most expert weights to move in a layer");
  limit("--max-receive", options.limits.max_receive_per_rank,
        "Most expert weights that one rank receives in a layer");
  limit("--max-layers", options.limits.max_layers,
        "Most layers to change; those that gain most go first");
  Option expert_bytes = command.number("--expert-bytes", options.expert_bytes,
                                       "Bytes of one expert's weights in one layer");
  expert_bytes.at_least(1);
  limit("--max-bytes", options.limits.max_bytes, "Most bytes to move, over all layers")
      .needs(expert_bytes);
  add_serving(command, options.serving);
  command
      .text("--preset", options.policy_options.preset,
            "Effort of trim: fast, balanced or deep [balanced]")
      .one_of({"fast", "balanced", "deep"})
      .type("NAME");
  command
      .number("--time-budget", options.policy_options.time_budget_s,
              "Seconds trim may search for a plan, about [no clock]")
      .between_reals(1e-6, 1e6)
      .type("S");
  command
      .number("--move-price", options.policy_options.move_price,
              "PAR that each move must gain its layer, for trim [its own]")
      .between_reals(0.0, 1e6)
      .type("PAR");
  command.negative_flag(
      "--no-keep-slots", options.policy_options.keep_slots,
      "Slots in the order of deepseek's published code; else an expert that stays on its rank "
      "stays in its slot");
}

void check_planner(const PlannerOptions& options, const std::vector<std::string>& policies) {
  if (options.current.empty() && (options.ranks == 0 || options.slots == 0)) {
    throw UsageError(
        fmt::format("{} (or --current) is required", options.ranks == 0 ? "--ranks" : "--slots"));
  }
  // Every policy gets the groups with the problem; one that ignores them would mislead.
  const WireOptions& wires = options.wires;
  if (wires.groups != 1 && !parse_node_rules(wires.rules).groups_on_nodes &&
      std::ranges::find(policies, "deepseek") == policies.end()) {
    throw UsageError(
        fmt::format("groups: only deepseek has it, and the policy is {}; --node-rules groups uses "
                    "them too",
                    fmt::join(policies, ", ")));
  }
  if (!wires.rules.empty() && wires.nodes == 1 && wires.topology.empty())
    throw UsageError("--node-rules: it has no effect without --nodes or --topology");
  try {
    make_policies(policies, options.policy_options);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace trimtab::cli
