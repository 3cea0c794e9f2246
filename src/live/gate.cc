// SPDX-License-Identifier: Apache-2.0
#include "live/gate.h"

#include <algorithm>

#include "split/split_loads.h"
#include "trimtab/balancer.h"
#include "trimtab/par.h"

namespace trimtab {

std::vector<double> estimated_pars(const Placement& placement, int layer, const Load& load,
                                   SplitRule rule) {
  if (rule == SplitRule::kSplit) return split_pars(placement, load, layer);
  return step_pars(rank_loads(placement, load, layer), 0);
}

std::vector<ChangedLayer> changed_layers(const Placement& from, const Placement& to,
                                         const Load& load, SplitRule rule) {
  std::vector<ChangedLayer> changed;
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    if (std::ranges::equal(from.logical(layer), to.logical(layer))) continue;
    changed.push_back(
        {layer, estimated_pars(from, layer, load, rule), estimated_pars(to, layer, load, rule)});
  }
  return changed;
}

std::vector<double> gains(std::span<const ChangedLayer> changed) {
  if (changed.empty()) return {};
  std::vector<double> gains(changed.front().before.size());
  for (const ChangedLayer& layer : changed) {
    for (size_t part = 0; part < gains.size(); ++part) {
      gains[part] += (layer.before[part] - layer.after[part]) / static_cast<double>(changed.size());
    }
  }
  return gains;
}

Worth worth_of(std::span<const ChangedLayer> changed, int num_layers, int64_t bytes,
               const Costs& costs, const BalancerConfig& config) {
  // The part of a step that waits for the busiest rank shrinks as that rank's rows do.
  double saved = 0;
  for (const ChangedLayer& layer : changed) {
    const double before = mean_of(layer.before);
    saved += (before - mean_of(layer.after)) / before;
  }
  Worth worth;
  worth.steps = config.expected_life_windows * static_cast<double>(config.interval);
  worth.saved_seconds = saved * costs.step_seconds * config.expert_share / num_layers * worth.steps;
  worth.move_seconds = static_cast<double>(bytes) * costs.seconds_per_byte +
                       static_cast<double>(changed.size()) * costs.seconds_per_layer;
  return worth;
}

}  // namespace trimtab
