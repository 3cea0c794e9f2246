// SPDX-License-Identifier: Apache-2.0
// The two gates that a plan passes before experts move. The first asks whether the window is more
// uneven than chance would make it (is_worth_planning() in trimtab/par.h); the second, here, asks
// of each layer whether the plan saves more time there than its moves take.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "split/split_loads.h"
#include "trimtab/load.h"
#include "trimtab/placement.h"

namespace trimtab {

struct BalancerConfig;

// Mean times, measured so far.
struct Costs {
  double step_seconds = 0;            // a step takes this long
  double seconds_per_byte = 1e-9;     // moving a byte of an expert takes this long
  double seconds_per_layer = 100e-6;  // switching a layer holds up the steps for this long
  // So many windows of what a plan promises it has brought in the end (PlanLife). Not given: as
  // the configuration says.
  std::optional<double> life_windows = std::nullopt;
};

// The loads that plans are measured on.
struct MeasuredSteps {
  const Load& parts;   // of a window
  const Load& single;  // single steps, for times; without any, the parts are single steps
  const Load& of(const Serving& serving) const {
    return serving.cost != nullptr && single.num_steps > 0 ? single : parts;
  }
};

// How level each part of a window, or each step, would be under a placement: served_pars(), but
// that in rows kStatic, like kRoundRobin, means that each replica gets equally many: nobody knows
// any more which ranks the tokens came from. Parts may have any number of tokens.
std::vector<double> estimated_pars(const Placement& placement, int layer,
                                   const MeasuredSteps& steps, const Serving& serving);

// A layer that another placement changes, and its estimated PAR on each part of a window or each
// step: [parts].
struct ChangedLayer {
  int layer = 0;
  std::vector<double> before, after;
  // With a cost model: the time that a step saves.
  double saved_seconds = 0;
};
// The layers in which two placements differ, ascending.
std::vector<ChangedLayer> changed_layers(const Placement& from, const Placement& to,
                                         const MeasuredSteps& steps, const Serving& serving);

// The gains in PAR on each part of the window: [parts], mean over the layers that change. Empty
// when none does.
std::vector<double> gains(std::span<const ChangedLayer> changed);

// What a plan saves and costs in one layer while it is in force.
struct Worth {
  double saved_seconds = 0;  // in all steps
  double move_seconds = 0;
  double steps = 0;  // how long it is expected to be in force

  // False for times that are no numbers.
  bool repays_its_moves() const { return saved_seconds > move_seconds; }
};
// changed: what the plan changes in the layer. num_layers: all layers. bytes: what the layer's
// moves send between ranks. Without a cost model a step is taken to wait for the busiest rank in
// config.expert_share of its time.
Worth worth_of(const ChangedLayer& changed, int num_layers, int64_t bytes, const Costs& costs,
               const BalancerConfig& config, bool in_time);

}  // namespace trimtab
