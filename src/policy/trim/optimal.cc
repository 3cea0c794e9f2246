// SPDX-License-Identifier: Apache-2.0
// The policy `optimal` makes plans that are proved best for the loads summed over the window, for
// small layers.
#include <algorithm>

#include "base/cat.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"
#include "policy/trim/branch_and_bound.h"
#include "policy/trim/episodes.h"
#include "policy/trim/layer_planner.h"
#include "policy/trim/searched_slots.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Beyond these a proof is out of reach; within them most layers take milliseconds, the worst
// seconds.
constexpr int kMaxExperts = 24;
constexpr int kMaxSlots = 64;
constexpr LayerLimits kNoLimits{.max_moves = PlanLimits::kNone, .max_receive = PlanLimits::kNone};
constexpr int64_t kMaxNodes = 100'000'000;

class Optimal : public Policy {
 public:
  std::string_view name() const override { return "optimal"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    refuse_rules(problem, name());
    if (problem.load.num_experts > kMaxExperts || problem.current.num_slots() > kMaxSlots) {
      throw InvalidArgument(cat("optimal proves plans of up to ", kMaxExperts, " experts in ",
                                kMaxSlots, " slots, not of ", problem.load.num_experts, " in ",
                                problem.current.num_slots(), "; use trim"));
    }
    const SearchedSlots slots(problem.current);
    const Noise noise(most_slots(slots.slots()));
    std::vector<double> peaks;
    Plan plan = finish_plan(problem, plan_layers(problem, [&](int layer) {
                              return plan_one(problem, layer, slots, noise, peaks);
                            }));
    // What was proved is a better bound than the general one. The search counts in floats: stay on
    // the safe side.
    for (int l = 0; l < problem.load.num_layers; ++l) {
      LayerPrediction& p = plan.layers[l];
      p.bound_equal = std::max(p.bound_equal, std::min(peaks[l] * (1 - 1e-6), p.par_after));
    }
    return plan;
  }

 private:
  // Plans a layer and adds its proved peak to `peaks`.
  static std::vector<int32_t> plan_one(const Problem& problem, int layer,
                                       const SearchedSlots& slots, const Noise& noise,
                                       std::vector<double>& peaks) {
    const Episodes episodes =
        layer_episodes(problem.load, nullptr, layer, 1, problem.current.num_ranks());
    if (episodes.count == 0) {
      peaks.push_back(1);
      return to_vector(problem.current.logical(layer));
    }
    const LayerTask task = slots.task(layer, episodes, 0);
    std::vector<int32_t> start = plan_layer(task, slots.current(layer), {}, kNoLimits, noise);
    const BranchAndBoundResult result =
        branch_and_bound(task, std::move(start), kMaxNodes, problem.stop);
    if (!result.peak_proved) {
      throw InvalidArgument(cat("layer ", layer, ": ", task.num_experts, " experts in ",
                                problem.current.num_slots(),
                                " slots are too many to prove the best plan; use trim"));
    }
    peaks.push_back(result.peak);
    return slots.complete(result.placement);
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimal_policy(const PolicyOptions&) {
  return std::make_unique<Optimal>();
}

}  // namespace trimtab
