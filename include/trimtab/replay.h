// SPDX-License-Identifier: Apache-2.0
// Replay measures what a policy is worth on a recording: the policy plans on one window of steps
// and is measured on the next, which it has not seen, over and over.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"
#include "trimtab/split.h"

namespace trimtab {

struct ReplayConfig {
  // Steps of a window, at least 1. Steps at the end of the recording that fill no window are left
  // out.
  int64_t window = 0;
  // The rule by which a step's tokens are shared out over replicas, as whole tokens: plans are made
  // for it and windows are measured with it. None: they are shared out equally, fractions included.
  std::optional<SplitRule> split;
  // What rows cost, so that windows are measured in time too; kTime needs one. It must outlive the
  // replay.
  const CostModel* cost = nullptr;
  // Every plan gets these; see Problem.
  Topology topology;
  PlanLimits limits;
  int64_t expert_bytes = 0;
  int num_groups = 1;
  NodeRules rules = {};
  const std::atomic<bool>* stop = nullptr;
};

// How level a placement keeps the ranks in one window.
struct WindowLevel {
  double par = 0;    // mean PAR of a step, over steps and layers
  double worst = 1;  // the largest PAR of a step of any layer
  // With a cost model: mean PAR of a step in time, and the time that a step's busiest rank takes
  // for all layers together, mean over the steps.
  double par_time = 0, step_seconds = 0;
  std::vector<double> rank_load;  // [layers, ranks] tokens of all steps
};
// load: the steps of the window. Throws InvalidArgument when the sizes do not fit, and as
// check_cost().
WindowLevel measure_window(const Placement& placement, const Load& load,
                           const ReplayConfig& config);

// One plan and how it did on the window after the one that it was made from.
struct ReplayedPlan {
  int64_t number = 0;  // 0: the plan of the first window
  Plan plan;
  double seconds = 0;  // planning took this long
  WindowLevel next;
};

struct ReplayResult {
  // The mean PAR of a step in the window after a plan, over windows and layers.
  double par_next_mean = 0;
  double par_next_worst = 1;  // the largest of those steps
  // With a cost model, the same in time: as in WindowLevel, mean over the windows.
  double par_time_next_mean = 0, step_seconds_next_mean = 0;
  // A replan is any plan but the first.
  double moves_per_layer_per_replan = 0;
  int64_t first_plan_moves = 0;  // over all layers
  double plan_seconds_per_replan = 0;
};

// The window, in steps, where none is named: an eighth of the recording, at least one step.
int64_t default_window(const Load& load);

// The number of windows of a recording that are planned on: all but the last. Throws
// InvalidArgument unless two windows fit.
int64_t num_replans(const Load& load, int64_t window);

// Plans on each window and measures the plan on the next. The first plan starts from `start`; every
// later one starts from the last plan and gets its history. The load must have the layers and
// experts of `start`. each, if given, is called after every plan is measured; it may take the
// plan's moves, but its placement and history are still needed. Throws InvalidArgument for what
// does not fit.
ReplayResult replay(const Policy& policy, const Load& load, const Placement& start,
                    const ReplayConfig& config,
                    const std::function<void(const ReplayedPlan&)>& each = {});

}  // namespace trimtab
