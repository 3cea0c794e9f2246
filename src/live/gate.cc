// SPDX-License-Identifier: Apache-2.0
#include "live/gate.h"

#include <algorithm>

#include "split/split_loads.h"
#include "trimtab/balancer.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

// The part of a step that waits for the busiest rank shrinks as that rank's rows do.
double saved_seconds_a_step(const Placement& current, const Placement& next, const Load& load,
                            const Costs& costs, const BalancerConfig& config,
                            const Topology& topology) {
  double saved = 0;
  for (const int layer : changed_layers(current, next)) {
    const double before = mean_of(estimated_pars(current, layer, load, config.split, topology));
    const double after = mean_of(estimated_pars(next, layer, load, config.split, topology));
    saved += (before - after) / before;
  }
  return saved * costs.step_seconds * config.expert_share / load.num_layers;
}

}  // namespace

std::vector<int> changed_layers(const Placement& from, const Placement& to) {
  std::vector<int> changed;
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    if (!std::ranges::equal(from.logical(layer), to.logical(layer))) changed.push_back(layer);
  }
  return changed;
}

std::vector<double> estimated_pars(const Placement& placement, int layer, const Load& load,
                                   SplitRule rule, const Topology& topology) {
  const Sharing sharing = rule == SplitRule::kSplit ? Sharing(rule) : std::nullopt;
  return step_pars(rank_loads(placement, load, layer, sharing, topology.node_of_rank), 0);
}

std::vector<double> gains(const Placement& from, const Placement& to, const Load& load,
                          SplitRule rule, const Topology& topology) {
  const std::vector<int> changed = changed_layers(from, to);
  if (changed.empty()) return {};
  std::vector<double> gains(cells(load.num_steps));
  for (const int layer : changed) {
    const std::vector<double> before = estimated_pars(from, layer, load, rule, topology);
    const std::vector<double> after = estimated_pars(to, layer, load, rule, topology);
    for (size_t part = 0; part < gains.size(); ++part) {
      gains[part] += (before[part] - after[part]) / static_cast<double>(changed.size());
    }
  }
  return gains;
}

Worth worth_of(const Placement& current, const Placement& next, const Load& load, int64_t bytes,
               const Costs& costs, const BalancerConfig& config, const Topology& topology) {
  Worth worth;
  worth.steps = config.expected_life_windows * static_cast<double>(config.interval);
  worth.saved_seconds =
      saved_seconds_a_step(current, next, load, costs, config, topology) * worth.steps;
  worth.move_seconds =
      static_cast<double>(bytes) * costs.seconds_per_byte +
      static_cast<double>(changed_layers(current, next).size()) * costs.seconds_per_layer;
  return worth;
}

}  // namespace trimtab
