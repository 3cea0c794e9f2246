// SPDX-License-Identifier: Apache-2.0
// The default policy `trim` plans every layer on episodes of the window and of what it remembers,
// with a price on moves.
#include <algorithm>

#include "base/cat.h"
#include "policy/align.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"
#include "policy/trim/episodes.h"
#include "policy/trim/layer_planner.h"
#include "policy/trim/searched_slots.h"
#include "policy/trim/served_search.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The price of moves where the user names none, in PAR for one weight received by every rank (moves
// spread over ranks, so this is what a plan costs in time). A first plan serves long and may move
// freely. Later, a layer whose loads look as before gains little but noise; one that has drifted
// gains for as long as it drifts no further.
constexpr double kFirstPrice = 0.0005;
constexpr double kDriftPrice = 0.018;
constexpr double kSteadyPrice = 0.064;
// A layer has drifted when its mean peak in the new window is this much PAR above that in the
// remembered episodes.
constexpr double kDrift = 0.03;

// A remembered episode weighs half after so many windows. Each has about so many steps, and so many
// are remembered.
constexpr double kHalfLifeWindows = 1;
constexpr int64_t kEpisodeSteps = 8;
constexpr int64_t kMaxRemembered = 48;

// Plans suppose that loads swing this much further than in the episodes. 1.2 to 1.6 are better than
// 1 on all synthetic sets.
constexpr float kExaggeration = 1.6F;

// The steps, or runs of steps, on which a plan is judged under the rule that serves.
constexpr int kServedSteps = 16;

Effort effort_of(const PolicyOptions& options) {
  Effort effort;
  if (options.preset == "fast") {
    effort.max_episodes = 16;
    effort.sweeps = 3;
    effort.max_visits = 250'000;
    effort.all_families = false;
    effort.replica_iterations = 100;
    effort.served_estimates = 1'000'000;
  } else if (options.preset == "deep") {
    effort.max_episodes = 64;
    effort.sweeps = 200;
    effort.max_visits = 25'000'000;
    effort.replica_iterations = 20'000;
    effort.served_estimates = 30'000'000;
    effort.target = effort.replicas_above = 1.0001;
  } else if (!options.preset.empty() && options.preset != "balanced") {
    throw InvalidArgument(cat("no preset '", options.preset, "'; there are fast, balanced, deep"));
  }
  return effort;
}

class Trim : public Policy {
 public:
  explicit Trim(const PolicyOptions& options)
      : effort_(effort_of(options)),
        move_price_(options.move_price),
        time_budget_s_(options.time_budget_s) {
    if (move_price_ && !(*move_price_ >= 0)) {
      throw InvalidArgument(cat("move_price is ", *move_price_, ", expected >= 0"));
    }
    if (time_budget_s_ && !(*time_budget_s_ > 0)) {
      throw InvalidArgument(cat("time_budget_s is ", *time_budget_s_, ", expected > 0"));
    }
  }

  std::string_view name() const override { return "trim"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    const SearchedSlots slots(problem.current);
    const Noise noise(most_slots(slots.slots()));
    std::vector<int32_t> proposal = plan_layers(
        problem.load.num_layers, [&](int layer) { return plan_one(problem, layer, slots, noise); });
    // With a history the gain lies in the remembered episodes too, and the search has weighed it.
    // A placement that was chosen for the rule that serves keeps its ranks, whose speeds and nodes
    // it was chosen for.
    Plan plan = finish_plan(
        problem, std::move(proposal),
        {.align_ranks = !has_serving(problem), .require_gain = problem.history == nullptr});
    const double half_life =
        kHalfLifeWindows * static_cast<double>(std::max<int64_t>(1, problem.load.num_steps));
    plan.history =
        remember(problem.history, problem.load, half_life, kEpisodeSteps, kMaxRemembered);
    return plan;
  }

 private:
  std::vector<int32_t> plan_one(const Problem& problem, int layer, const SearchedSlots& slots,
                                const Noise& noise) const {
    Effort effort = effort_;
    // Long windows hold more to plan on.
    constexpr int64_t kLongWindow = 512;
    if (problem.load.num_steps >= kLongWindow) {
      effort.max_episodes *= 2;
      effort.sweeps += effort.sweeps / 2;
    }
    // The fewer ranks, the sooner the heat bath has seen all pairs often enough.
    const int ranks = std::min(problem.current.num_ranks(), 32);
    effort.sweeps = std::max(1, effort.sweeps * (8 + ranks) / 40);
    if (time_budget_s_) effort.seconds = *time_budget_s_ / problem.load.num_layers;
    Episodes episodes = layer_episodes(problem.load, problem.history, layer, effort.max_episodes,
                                       problem.current.num_ranks());
    if (episodes.count == 0) return to_vector(problem.current.logical(layer));
    if (episodes.count > 1) exaggerate(episodes, kExaggeration);
    const LayerTask task = slots.task(layer, episodes, price(problem, layer, slots, effort));
    if (!move_price_ && problem.history == nullptr)
      effort.near_price = kDriftPrice / problem.current.num_ranks();
    const LayerLimits limits{.max_moves = problem.limits.max_moves_per_layer,
                             .max_receive = problem.limits.max_receive_per_rank};
    std::vector<int32_t> placement =
        slots.complete(plan_layer(task, slots.current(layer), effort, limits, noise));
    if (!has_serving(problem)) return placement;
    return for_serving(problem, layer, std::move(placement), limits, task.move_price);
  }

  // Is there more to a plan than equal shares in rows?
  static bool has_serving(const Problem& problem) {
    return problem.cost != nullptr || problem.split == SplitRule::kSplit;
  }

  std::vector<int32_t> for_serving(const Problem& problem, int layer,
                                   std::vector<int32_t> placement, const LayerLimits& limits,
                                   double move_price) const {
    const ServedSteps steps = served_steps(problem, layer, kServedSteps);
    const std::span<const int32_t> current = problem.current.logical(layer);
    if (steps.load.num_steps == 0) return to_vector(current);
    const SlotRanges slots(problem.current.first_slots());
    placement = align_ranks(current, placement, slots, problem.load.num_experts, problem.topology);
    placement = align_slots(current, placement, slots);
    return search_served({.current = problem.current,
                          .layer = layer,
                          .steps = steps,
                          .serving = {problem.split, problem.cost, problem.topology.node_of_rank},
                          .move_price = move_price,
                          .limits = limits,
                          .estimates = effort_.served_estimates},
                         std::move(placement));
  }

  double price(const Problem& problem, int layer, const SearchedSlots& slots,
               const Effort& effort) const {
    if (move_price_) return *move_price_;
    const double ranks = problem.current.num_ranks();
    // One vector without a past says nothing that would tell noise from gain: level it.
    if (problem.history == nullptr) return problem.load.num_steps <= 1 ? 0 : kFirstPrice / ranks;
    return (drifted(problem, layer, slots, effort) ? kDriftPrice : kSteadyPrice) / ranks;
  }

  bool drifted(const Problem& problem, int layer, const SearchedSlots& slots,
               const Effort& effort) const {
    if (slots.current(layer).empty()) return true;
    const auto peak = [&](const Load& window, const History* history) {
      const Episodes episodes =
          layer_episodes(window, history, layer, effort.max_episodes, problem.current.num_ranks());
      if (episodes.count == 0) return 0.0;
      return placement_cost(slots.task(layer, episodes, 0), slots.current(layer));
    };
    const Load nothing{.num_steps = 0,
                       .num_layers = problem.load.num_layers,
                       .num_experts = problem.load.num_experts,
                       .counts = {}};
    return peak(problem.load, nullptr) > peak(nothing, problem.history) + kDrift;
  }

  Effort effort_;
  std::optional<double> move_price_;
  std::optional<double> time_budget_s_;
};

}  // namespace

std::unique_ptr<Policy> make_trim_policy(const PolicyOptions& options) {
  return std::make_unique<Trim>(options);
}

}  // namespace trimtab
