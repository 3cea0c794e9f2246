// SPDX-License-Identifier: Apache-2.0
#include "live/planner.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/cat.h"
#include "load/replicas.h"
#include "policy/layer_placement.h"
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

// What a plan changes in one layer.
struct LayerPlan {
  int layer = 0;
  int64_t moves = 0, bytes = 0;
};

LayerPlan layer_plan(const PlanTask& task, int layer, std::span<const Move> moves) {
  LayerPlan one{.layer = layer, .moves = std::ssize(moves)};
  for (const Move& t : moves) {
    const bool is_sent =
        task.current.rank_of_slot(t.slot) != task.current.rank_of_slot(t.from_slot);
    one.bytes += is_sent ? task.expert_bytes : 0;
  }
  return one;
}

// A plan on its way through the gates: the layers that change, and what is left of the others.
class Judge {
 public:
  Judge(const PlanTask& task, const Placement& planned, PlanResult& result)
      : task_(task), planned_(planned), result_(result) {}

  void run() {
    take_what_fits();
    if (layers_.empty()) {
      result_.why = "the policy moves nothing";
      return;
    }
    const Serving serving = serving_of(task_.config, task_.topology, task_.cost.get());
    changed_ =
        changed_layers(task_.current, next(), {task_.window.load, task_.window.single}, serving);
    const PlanResult all = total();
    if (task_.config.gate) keep_what_pays(serving.cost != nullptr);
    const bool rejected = layers_.empty();
    const PlanResult kept = rejected ? all : total();
    result_.kind = rejected ? PlanResult::Kind::kRejected : PlanResult::Kind::kPlan;
    result_.moves = kept.moves;
    result_.bytes = kept.bytes;
    result_.predicted = kept.predicted;
    result_.logical = kept.logical;
  }

 private:
  // Leaves out the layers for which a rank would need more spares than it has.
  void take_what_fits() {
    for (int layer = 0; layer < planned_.num_layers(); ++layer) {
      const std::vector<Move> moves = plan_moves(task_.current, planned_, layer, task_.topology);
      if (moves.empty()) continue;
      const int needed = std::ranges::max(spares_needed(moves, task_.current.first_slots()));
      if (needed <= task_.max_receive) {
        layers_.push_back(layer_plan(task_, layer, moves));
      } else {
        result_.left_out.push_back(cat("layer ", layer, ": a rank would need ", needed,
                                       " spares, it has ", task_.max_receive));
      }
    }
  }

  // Leaves out the layers that do not repay their moves.
  void keep_what_pays(bool in_time) {
    double saved = 0, taken = 0, steps = 0;
    std::vector<LayerPlan> layers;
    std::vector<ChangedLayer> changed;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Worth worth = worth_of(changed_[i], task_.current.num_layers(), layers_[i].bytes,
                                   task_.costs, task_.config, in_time);
      saved += worth.saved_seconds;
      taken += worth.move_seconds;
      steps = worth.steps;
      if (!worth.repays_its_moves()) continue;
      layers.push_back(layers_[i]);
      changed.push_back(changed_[i]);
    }
    if (layers.empty()) {
      result_.why = cat("the moves would take ", taken, " s and save ", saved, " s in ", steps,
                        " steps; no layer repays its own");
    } else {
      changed_ = std::move(changed);
    }
    layers_ = std::move(layers);
  }

  // The placement with the layers that are in.
  Placement next() const {
    std::vector<int32_t> logical = to_vector(task_.current.logical());
    const Table<int32_t> slots(logical, task_.current.num_slots());
    for (const LayerPlan& one : layers_)
      std::ranges::copy(planned_.logical(one.layer), slots[one.layer].begin());
    return task_.current.with(std::move(logical), task_.current.version() + 1);
  }

  PlanResult total() const {
    PlanResult sum;
    for (const LayerPlan& one : layers_) {
      sum.moves += one.moves;
      sum.bytes += one.bytes;
    }
    sum.predicted = mean_of(gains(changed_));
    sum.logical = to_vector(next().logical());
    return sum;
  }

  const PlanTask& task_;
  const Placement& planned_;
  PlanResult& result_;
  std::vector<LayerPlan> layers_;
  std::vector<ChangedLayer> changed_;  // of these layers
};

// The rows of a slow rank count for more, as if all ranks were equally fast: they are level when
// all are done at the same time.
RankLoads at_equal_speeds(RankLoads loads, const CostModel* cost) {
  if (cost == nullptr || !cost->has_speeds()) return loads;
  const auto speeds = cost->speeds();
  const double mean =
      std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(speeds.size());
  for (int layer = 0; layer < loads.num_layers(); ++layer) {
    for (int64_t step = 0; step < loads.num_steps(); ++step) {
      const std::span<double> ranks = loads.at(step, layer);
      for (size_t r = 0; r < ranks.size(); ++r) ranks[r] *= mean / speeds[r];
    }
  }
  loads.sum_up_window();
  return loads;
}

PlanResult plan(const PlanTask& task) {
  PlanResult result;
  result.history = task.history;
  const auto& counts = task.window.load.counts;
  if (std::ranges::all_of(counts, [](int64_t count) { return count == 0; })) {
    result.why = "the window has no tokens";
    return result;
  }
  const AboveChance above = above_chance(at_equal_speeds(task.window.rank_loads, task.cost.get()));
  if (!is_worth_planning(above, task.config.plan_above_par)) {
    result.why = cat("the ranks are level: PAR is ", above.window, " above what chance leaves");
    return result;
  }
  PlanLimits limits = task.config.limits;
  limits.max_receive_per_rank = std::min<int64_t>(limits.max_receive_per_rank, task.max_receive);
  const Serving serving = serving_of(task.config, task.topology, task.cost.get());
  const Load& single = task.window.single;
  const bool remembers = task.history != nullptr && task.history->steps_seen > 0;
  Plan plan = task.policy->rebalance({.load = task.window.load,
                                      .current = task.current,
                                      .topology = task.topology,
                                      .limits = limits,
                                      .expert_bytes = task.expert_bytes,
                                      .history = remembers ? task.history.get() : nullptr,
                                      .split = serving.sharing,
                                      .cost = serving.cost,
                                      .steps = single.num_steps > 0 ? &single : nullptr});
  if (std::string wrong = fault(task.current, plan); !wrong.empty()) {
    result.kind = PlanResult::Kind::kFailed;
    result.why = std::move(wrong);
    return result;
  }
  result.history = std::make_shared<const History>(std::move(plan.history));
  Judge(task, plan.placement, result).run();
  return result;
}

}  // namespace

Serving serving_of(const BalancerConfig& config, const Topology& topology, const CostModel* cost) {
  const bool in_rows = cost == nullptr || cost->is_proportional();
  const bool is_split = config.split == SplitRule::kTime && in_rows;
  return {is_split ? SplitRule::kSplit : config.split, in_rows ? nullptr : cost,
          topology.node_of_rank};
}

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
