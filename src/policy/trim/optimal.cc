// SPDX-License-Identifier: Apache-2.0
// optimal: plans that are proved best for the loads summed over the window, for small layers.
#include <algorithm>

#include "base/cat.h"
#include "policy/frame.h"
#include "policy/policies.h"
#include "policy/trim/episodes.h"
#include "policy/trim/exact_search.h"
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
    if (problem.load.num_experts > kMaxExperts || problem.current.num_slots() > kMaxSlots) {
      throw InvalidArgument(cat("optimal proves plans of up to ", kMaxExperts, " experts in ",
                                kMaxSlots, " slots, not of ", problem.load.num_experts, " in ",
                                problem.current.num_slots(), "; use trim"));
    }
    const SearchedSlots slots(problem.current);
    const Noise noise(slots.most());
    std::vector<int32_t> proposal;
    std::vector<double> peaks;
    for (int layer = 0; layer < problem.load.num_layers; ++layer) {
      const Episodes episodes =
          layer_episodes(problem.load, nullptr, layer, 1, problem.current.num_ranks());
      if (episodes.count == 0) {
        const std::span<const int32_t> kept = problem.current.logical(layer);
        proposal.insert(proposal.end(), kept.begin(), kept.end());
        peaks.push_back(1);
        continue;
      }
      const LayerTask task = slots.task(layer, episodes, 0);
      std::vector<int32_t> start = plan_layer(task, slots.current(layer), {}, kNoLimits, noise);
      const ExactResult result = search_exactly(task, std::move(start), kMaxNodes);
      if (!result.peak_proved) {
        throw InvalidArgument(cat("layer ", layer, ": ", task.num_experts, " experts in ",
                                  problem.current.num_slots(),
                                  " slots are too many to prove the best plan; use trim"));
      }
      slots.append(result.map, proposal);
      peaks.push_back(result.peak);
    }
    Plan plan = finish_plan(problem, std::move(proposal));
    // What was proved is a better bound than the general one. The search counts in floats: stay on
    // the safe side.
    for (size_t l = 0; l < peaks.size(); ++l) {
      LayerPrediction& p = plan.layers[l];
      p.bound_equal = std::max(p.bound_equal, std::min(peaks[l] * (1 - 1e-6), p.par_after));
    }
    return plan;
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimal_policy(const PolicyOptions&) {
  return std::make_unique<Optimal>();
}

}  // namespace trimtab
