// SPDX-License-Identifier: Apache-2.0
#include "live/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/cat.h"
#include "live/estimate.h"
#include "load/predict.h"
#include "load/rank_loads.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// By how much PAR is above what chance alone leaves, mean over the layers: of the parts of the
// window, and of their sum.
struct Excess {
  double parts = 0, sum = 0;
};
Excess excess(const Window& window, int num_ranks) {
  Excess excess;
  const int layers = window.load.num_layers;
  for (int layer = 0; layer < layers; ++layer) {
    std::vector<int64_t> tokens, rows(num_ranks);
    for (int64_t part = 0; part < window.load.num_steps; ++part) {
      const auto of_part = window.rows(part, layer, num_ranks);
      tokens.push_back(std::accumulate(of_part.begin(), of_part.end(), int64_t{0}));
      std::ranges::transform(rows, of_part, rows.begin(), std::plus());
    }
    const std::vector<int64_t> all = {std::accumulate(tokens.begin(), tokens.end(), int64_t{0})};
    excess.parts +=
        (mean_of(measured_pars(window, layer, num_ranks)) - noise_floor(tokens, num_ranks)) /
        layers;
    excess.sum += (par(rows) - noise_floor(all, num_ranks)) / layers;
  }
  return excess;
}

// Is what a policy made of the task a placement that can be taken? Empty, or what is wrong.
std::string fault(const Placement& current, const Plan& plan) {
  const Placement& next = plan.placement;
  if (next.num_layers() != current.num_layers() || next.num_experts() != current.num_experts() ||
      !std::ranges::equal(next.first_slots(), current.first_slots())) {
    return cat("the plan is for ", next.num_layers(), " layers, ", next.num_experts(),
               " experts and ", next.num_slots(), " slots on ", next.num_ranks(),
               " ranks, which is not what there is");
  }
  for (int layer = 0; layer < next.num_layers(); ++layer) {
    const int64_t twice = duplicate_slots(next.logical(layer), next.first_slots());
    if (twice > duplicate_slots(current.logical(layer), current.first_slots())) {
      return cat("the plan has more experts twice on one rank than there are now, in layer ", layer,
                 ": ", twice);
    }
  }
  return "";
}

// Seconds that a plan saves in one step: the part of it that waits for the busiest rank shrinks as
// that rank's rows do.
double saved_seconds(const PlanTask& task, const Placement& next) {
  const Load& load = task.window.load;
  double saved = 0;
  for (const int layer : changed_layers(task.current, next)) {
    const double before =
        mean_of(estimated_pars(task.current, layer, load, task.config.split, task.topology));
    const double after =
        mean_of(estimated_pars(next, layer, load, task.config.split, task.topology));
    saved += (before - after) / before;
  }
  return saved * task.costs.step_seconds * task.config.expert_share / load.num_layers;
}

void judge(const PlanTask& task, const Placement& next, PlanResult& result) {
  const std::vector<double> all =
      gains(task.current, next, task.window.load, task.config.split, task.topology);
  result.predicted = mean_of(all);
  result.kind = PlanResult::Kind::kPlan;
  if (!task.config.gate) return;
  const double life = task.config.expected_life_windows * static_cast<double>(task.config.interval);
  const double gain = saved_seconds(task, next) * life;
  const double cost =
      static_cast<double>(result.bytes) * task.costs.seconds_per_byte +
      static_cast<double>(changed_layers(task.current, next).size()) * task.costs.seconds_per_layer;
  if (gain > cost) return;  // not so for NaN
  result.kind = PlanResult::Kind::kRejected;
  result.why = cat("the moves would take ", cost, " s and save ", gain, " s in ", life, " steps");
}

// The plan without the layers for which a rank would need more spares than it has.
Placement take_what_fits(const PlanTask& task, const Placement& planned, PlanResult& result) {
  for (int layer = 0; layer < planned.num_layers(); ++layer) {
    const std::vector<Move> moves = plan_moves(task.current, planned, layer, task.topology);
    const bool fits =
        std::ranges::max(spares_needed(moves, task.current.first_slots())) <= task.max_receive;
    const auto logical = (fits ? planned : task.current).logical(layer);
    result.logical.insert(result.logical.end(), logical.begin(), logical.end());
    for (const Move& t : fits ? moves : std::vector<Move>()) {
      ++result.moves;
      const bool is_sent =
          task.current.rank_of_slot(t.slot) != task.current.rank_of_slot(t.from_slot);
      result.bytes += is_sent ? task.expert_bytes : 0;
    }
  }
  return task.current.with(result.logical, task.current.version() + 1);
}

PlanResult plan(const PlanTask& task) {
  PlanResult result;
  result.history = task.history;
  const auto& counts = task.window.load.counts;
  if (std::ranges::all_of(counts, [](int64_t count) { return count == 0; })) {
    result.why = "the window has no tokens";
    return result;
  }
  const Excess above_chance = excess(task.window, task.current.num_ranks());
  if (std::max(above_chance.parts, above_chance.sum) <= task.config.plan_above_par - 1) {
    result.why = cat("the ranks are level: PAR is ", above_chance.sum, " above what chance leaves");
    return result;
  }
  PlanLimits limits = task.config.limits;
  limits.max_receive_per_rank = std::min<int64_t>(limits.max_receive_per_rank, task.max_receive);
  Plan plan =
      task.policy->rebalance({.load = task.window.load,
                              .current = task.current,
                              .topology = task.topology,
                              .limits = limits,
                              .expert_bytes = task.expert_bytes,
                              .history = task.history.steps_seen > 0 ? &task.history : nullptr});
  if (std::string wrong = fault(task.current, plan); !wrong.empty()) {
    result.kind = PlanResult::Kind::kFailed;
    result.why = std::move(wrong);
    return result;
  }
  result.history = std::move(plan.history);
  const Placement next = take_what_fits(task, plan.placement, result);
  if (result.moves == 0) {
    result.why = "the policy moves nothing";
    return result;
  }
  judge(task, next, result);
  return result;
}

}  // namespace

PlanResult make_plan(const PlanTask& task) {
  const auto start = std::chrono::steady_clock::now();
  PlanResult result;
  try {
    result = plan(task);
  } catch (const std::exception& error) {
    result.kind = PlanResult::Kind::kFailed;
    result.why = error.what();
  } catch (...) {
    result.kind = PlanResult::Kind::kFailed;
    result.why = "the policy threw something that is no std::exception";
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::vector<int> changed_layers(const Placement& from, const Placement& to) {
  std::vector<int> changed;
  for (int layer = 0; layer < from.num_layers(); ++layer) {
    if (!std::ranges::equal(from.logical(layer), to.logical(layer))) changed.push_back(layer);
  }
  return changed;
}

std::vector<double> gains(const Placement& from, const Placement& to, const Load& load,
                          SplitRule rule, const Topology& topology) {
  const std::vector<int> changed = changed_layers(from, to);
  if (changed.empty()) return {};
  std::vector<double> gains(load.num_steps);
  for (const int layer : changed) {
    const std::vector<double> before = estimated_pars(from, layer, load, rule, topology);
    const std::vector<double> after = estimated_pars(to, layer, load, rule, topology);
    for (size_t part = 0; part < gains.size(); ++part) {
      gains[part] += (before[part] - after[part]) / static_cast<double>(changed.size());
    }
  }
  return gains;
}

}  // namespace trimtab
