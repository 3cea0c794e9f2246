// SPDX-License-Identifier: Apache-2.0
#include "live/planner.h"

#include <algorithm>
#include <chrono>

#include "base/cat.h"
#include "load/replicas.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

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

void judge(const PlanTask& task, const Placement& next, PlanResult& result) {
  const std::vector<ChangedLayer> changed =
      changed_layers(task.current, next, task.window.load, task.config.split);
  result.predicted = mean_of(gains(changed));
  result.kind = PlanResult::Kind::kPlan;
  if (!task.config.gate) return;
  const Worth worth =
      worth_of(changed, task.window.load.num_layers, result.bytes, task.costs, task.config);
  if (worth.repays_its_moves()) return;
  result.kind = PlanResult::Kind::kRejected;
  result.why = cat("the moves would take ", worth.move_seconds, " s and save ", worth.saved_seconds,
                   " s in ", worth.steps, " steps");
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
  const AboveChance above = above_chance(task.window.rank_loads);
  if (!is_worth_planning(above, task.config.plan_above_par)) {
    result.why = cat("the ranks are level: PAR is ", above.window, " above what chance leaves");
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
  // A plan that fails forgets nothing of the windows before.
  PlanResult result;
  const auto fail = [&](std::string why) {
    result = {.kind = PlanResult::Kind::kFailed, .why = std::move(why), .history = task.history};
  };
  try {
    result = plan(task);
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {
    fail("the policy threw something that is no std::exception");
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace trimtab
