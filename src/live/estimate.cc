// SPDX-License-Identifier: Apache-2.0
#include "live/estimate.h"

#include "load/rank_loads.h"
#include "trimtab/workspace.h"

namespace trimtab {

std::vector<double> estimated_pars(const Placement& placement, int layer, const Load& load,
                                   SplitRule rule, const Topology& topology) {
  if (rule != SplitRule::kSplit)
    return step_pars(placement.logical(layer), placement.first_slots(), load, layer);
  const SplitTable table(placement, layer, topology.node_of_rank);
  Workspace workspace(split_workspace_bytes(table));
  const auto ranks = static_cast<size_t>(placement.num_ranks());
  const auto experts = static_cast<size_t>(placement.num_experts());
  // The peak comes first, so it is the same wherever the tokens come from: say, from rank 0.
  std::vector<int32_t> counts(ranks * experts),
      shares(ranks * static_cast<size_t>(placement.num_slots()));
  std::vector<int64_t> loads(ranks);
  std::vector<double> pars;
  for (int64_t part = 0; part < load.num_steps; ++part) {
    const auto row = load.at(part, layer);
    for (size_t e = 0; e < experts; ++e) counts[e] = static_cast<int32_t>(row[e]);
    split_tokens(rule, table, counts, workspace, shares);
    split_rank_loads(table, shares, loads);
    pars.push_back(par(loads));
  }
  return pars;
}

std::vector<double> measured_pars(const Window& window, int layer, int num_ranks) {
  std::vector<double> pars;
  for (int64_t part = 0; part < window.load.num_steps; ++part)
    pars.push_back(par(window.rows(part, layer, num_ranks)));
  return pars;
}

}  // namespace trimtab
