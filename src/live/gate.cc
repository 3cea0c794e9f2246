// SPDX-License-Identifier: Apache-2.0
#include "live/gate.h"

#include <algorithm>

#include "trimtab/balancer.h"
#include "trimtab/par.h"

namespace trimtab {

std::vector<double> estimated_pars(const Placement& placement, int layer,
                                   const MeasuredSteps& steps, const Serving& serving) {
  Serving known = serving;
  const bool depends_on_senders = serving.sharing && serving.sharing != SplitRule::kSplit;
  if (serving.cost == nullptr && depends_on_senders) known.sharing.reset();
  const Load& load = steps.of(serving);
  check_fits(placement, load);
  return served_pars(placement, layer, load, layer, known);
}

std::vector<ChangedLayer> changed_layers(const Placement& from, const Placement& to,
                                         const MeasuredSteps& steps, const Serving& serving) {
  std::vector<ChangedLayer> changed;
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    if (std::ranges::equal(from.logical(layer), to.logical(layer))) continue;
    ChangedLayer& one =
        changed.emplace_back(ChangedLayer{layer, estimated_pars(from, layer, steps, serving),
                                          estimated_pars(to, layer, steps, serving)});
    if (serving.cost == nullptr) continue;
    const std::vector<double> means =
        mean_times(steps.of(serving), layer, *serving.cost, from.num_ranks());
    for (size_t step = 0; step < means.size(); ++step)
      one.saved_seconds += (one.before[step] - one.after[step]) * means[step];
    one.saved_seconds /= static_cast<double>(std::max<size_t>(means.size(), 1));
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

Worth worth_of(const ChangedLayer& changed, int num_layers, int64_t bytes, const Costs& costs,
               const BalancerConfig& config, bool in_time) {
  double saved = changed.saved_seconds;
  if (!in_time) {
    // The part of a step that waits for the busiest rank shrinks as that rank's rows do.
    const double before = mean_of(changed.before);
    saved = (before - mean_of(changed.after)) / before * costs.step_seconds * config.expert_share /
            num_layers;
  }
  Worth worth;
  worth.steps = costs.life_windows.value_or(config.expected_life_windows) *
                static_cast<double>(config.interval);
  worth.saved_seconds = saved * worth.steps;
  worth.move_seconds =
      static_cast<double>(bytes) * costs.seconds_per_byte + costs.seconds_per_layer;
  return worth;
}

}  // namespace trimtab
