// SPDX-License-Identifier: Apache-2.0
#include "trimtab/replay.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/cat.h"
#include "split/split_loads.h"
#include "trimtab/error.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

Load window_of(const Load& load, int64_t window, int64_t number) {
  return steps_of(load, {number * window, (number + 1) * window});
}

}  // namespace

WindowLevel measure_window(const Placement& placement, const Load& load,
                           const ReplayConfig& config) {
  const Serving serving = {config.split, config.cost, config.topology.node_of_rank};
  WindowLevel window;
  for (int layer = 0; layer < load.num_layers; ++layer) {
    const RankLoads loads = rank_loads(placement, load, layer, serving);
    const Levelness level = levelness(loads, 0);
    window.par += level.par_step_mean / load.num_layers;
    window.worst = std::max(window.worst, level.par_step_worst);
    const std::span<const double> tokens = loads.window(0);
    window.rank_load.insert(window.rank_load.end(), tokens.begin(), tokens.end());
    if (config.cost == nullptr) continue;
    const RankLoads times = rank_times(placement, load, layer, serving);
    window.par_time += mean_of(step_pars(times, 0)) / load.num_layers;
    window.step_seconds += mean_step_peak(times, 0);
  }
  return window;
}

int64_t default_window(const Load& load) {
  return std::max<int64_t>(load.num_steps / 8, 1);
}

int64_t num_replans(const Load& load, int64_t window) {
  if (window < 1) throw InvalidArgument(cat("a window has at least 1 step, not ", window));
  if (load.num_steps / 2 < window) {
    throw InvalidArgument(cat(load.num_steps, " steps; a window of ", window, " needs ", 2 * window,
                              ", to plan on one window and measure on the next"));
  }
  return load.num_steps / window - 1;
}

ReplayResult replay(const Policy& policy, const Load& load, const Placement& start,
                    const ReplayConfig& config,
                    const std::function<void(const ReplayedPlan&)>& each) {
  check_fits(start, load);
  const int64_t plans = num_replans(load, config.window);
  const auto replans = static_cast<double>(std::max<int64_t>(plans - 1, 1));
  ReplayResult result;
  Placement placement = start;
  History history;
  Load now = window_of(load, config.window, 0);
  for (int64_t number = 0; number < plans; ++number) {
    const Problem problem{.load = now,
                          .current = placement,
                          .topology = config.topology,
                          .limits = config.limits,
                          .expert_bytes = config.expert_bytes,
                          .num_groups = config.num_groups,
                          .rules = config.rules,
                          .history = number > 0 ? &history : nullptr,
                          .split = config.split,
                          .cost = config.cost,
                          .stop = config.stop};
    const auto begin = std::chrono::steady_clock::now();
    ReplayedPlan replan{.number = number, .plan = policy.rebalance(problem)};
    replan.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int64_t moves = std::ssize(replan.plan.moves);
    if (number == 0) {
      result.first_plan_moves = moves;
    } else {
      result.moves_per_layer_per_replan +=
          static_cast<double>(moves) / static_cast<double>(load.num_layers) / replans;
      result.plan_seconds_per_replan += replan.seconds / replans;
    }
    now = window_of(load, config.window, number + 1);
    replan.next = measure_window(replan.plan.placement, now, config);
    result.par_next_mean += replan.next.par / static_cast<double>(plans);
    result.par_time_next_mean += replan.next.par_time / static_cast<double>(plans);
    result.step_seconds_next_mean += replan.next.step_seconds / static_cast<double>(plans);
    result.par_next_worst = std::max(result.par_next_worst, replan.next.worst);
    if (each) each(replan);
    placement = std::move(replan.plan.placement);
    history = std::move(replan.plan.history);
  }
  return result;
}

}  // namespace trimtab
