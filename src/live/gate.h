// SPDX-License-Identifier: Apache-2.0
// The two gates that a plan passes before experts move. The first asks whether the window is more
// uneven than chance would make it (is_worth_planning() in trimtab/par.h); the second, here, asks
// whether a plan saves more time than its moves take.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"

namespace trimtab {

struct BalancerConfig;

// Mean times, measured so far.
struct Costs {
  double step_seconds = 0;            // a step takes this long
  double seconds_per_byte = 1e-9;     // moving a byte of an expert takes this long
  double seconds_per_layer = 100e-6;  // switching a layer holds up the steps for this long
};

// What PAR each part of a window would have under a placement: [parts]. With kSplit tokens are
// shared out as the layers do it; PAR then does not depend on which ranks the tokens come from.
// With kStatic it does, and nobody knows any more where they came from: then, as with kRoundRobin
// and kTime, each replica gets equally many. Parts may have any number of tokens.
std::vector<double> estimated_pars(const Placement& placement, int layer, const Load& load,
                                   SplitRule rule);

// A layer that another placement changes, and its estimated PAR on each part of a window: [parts].
struct ChangedLayer {
  int layer = 0;
  std::vector<double> before, after;
};
// The layers in which two placements differ, ascending.
std::vector<ChangedLayer> changed_layers(const Placement& from, const Placement& to,
                                         const Load& load, SplitRule rule);

// The gains in PAR on each part of the window: [parts], mean over the layers that change. Empty
// when none does.
std::vector<double> gains(std::span<const ChangedLayer> changed);

// What a plan saves and costs while it is in force.
struct Worth {
  double saved_seconds = 0;  // in all steps
  double move_seconds = 0;
  double steps = 0;  // how long it is expected to be in force

  // False for times that are no numbers.
  bool repays_its_moves() const { return saved_seconds > move_seconds; }
};
// changed: what the plan changes, on the window that it was made from. num_layers: those that do
// not change too. bytes: what its moves send between ranks.
Worth worth_of(std::span<const ChangedLayer> changed, int num_layers, int64_t bytes,
               const Costs& costs, const BalancerConfig& config);

}  // namespace trimtab
