// SPDX-License-Identifier: Apache-2.0
// The default policy `trim` plans every layer on episodes of the window and of what it remembers,
// with a price on moves.
#include <algorithm>

#include "base/cat.h"
#include "load/episodes.h"
#include "policy/align.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"
#include "policy/trim/episodes.h"
#include "policy/trim/frontier.h"
#include "policy/trim/grow.h"
#include "policy/trim/layer_planner.h"
#include "policy/trim/rule_keeper.h"
#include "policy/trim/rule_search.h"
#include "policy/trim/searched_slots.h"
#include "policy/trim/served_cost.h"
#include "policy/trim/served_search.h"
#include "policy/trim/wire_search.h"
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
// In a layer so small that single moves are searched, few moves bring what can be had, and more are
// of no use later; so one price suits all plans.
constexpr double kSmallPrice = 0.008;
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

// Copies per token between nodes that a move must gain after the first plan.
constexpr double kWireMovePrice = 0.002;

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
    effort.node_steps = effort.wire_steps = 20'000;
    effort.price_steps = 5'000;
    effort.wire_tokens = 1'024;
  } else if (options.preset == "deep") {
    effort.max_episodes = 64;
    effort.sweeps = 200;
    effort.max_visits = 25'000'000;
    effort.replica_iterations = 20'000;
    effort.served_estimates = 30'000'000;
    effort.node_steps = effort.wire_steps = 1'000'000;
    effort.wire_work = 300'000'000;
    effort.price_steps = 200'000;
    effort.wire_tokens = kMaxSampledTokens;
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
    if (has_rules(problem) && has_serving(problem)) {
      throw InvalidArgument(
          "rules for nodes: trim keeps to them for equal shares alone, without a split rule or a "
          "cost; leave one of them out");
    }
    const SearchedSlots slots(problem.current);
    const Noise noise(most_slots(slots.slots()));
    std::vector<int32_t> proposal =
        plan_layers(problem, [&](int layer) { return plan_one(problem, layer, slots, noise); });
    // With a history the gain lies in the remembered episodes too, and the search has weighed it.
    // A placement that was chosen for the rule that serves keeps its ranks, whose speeds and nodes
    // it was chosen for.
    const bool wires_name_ranks =
        problem.has_wires() && (has_sources(problem) || problem.topology.has_prices());
    const bool keeps_ranks = has_serving(problem) || wires_name_ranks;
    FinishOptions finish{.align_ranks = !keeps_ranks, .require_gain = problem.history == nullptr};
    finish.alternatives = [&](int layer) { return alternatives(problem, layer, slots, noise); };
    if (problem.history != nullptr) {
      finish.cost = [&](int layer, std::span<const int32_t> placement) {
        return served_cost(problem.current, placement, served_steps(problem, layer, kServedSteps),
                           serving_of(problem));
      };
    }
    Plan plan = finish_plan(problem, std::move(proposal), finish);
    const double half_life =
        kHalfLifeWindows * static_cast<double>(std::max<int64_t>(1, problem.load.num_steps));
    plan.history =
        remember(problem.history, problem.load, half_life, kEpisodeSteps, kMaxRemembered);
    return plan;
  }

 private:
  // One layer's task, and what it is made of.
  struct Work {
    Effort effort;
    Episodes episodes;
    double move_price = 0;
    LayerLimits limits;
  };

  Work work_of(const Problem& problem, int layer, const SearchedSlots& slots) const {
    Effort effort = effort_;
    effort.stop = problem.stop;
    // Long windows hold more to plan on.
    constexpr int64_t kLongWindow = 512;
    if (problem.load.num_steps >= kLongWindow) {
      effort.max_episodes += effort.max_episodes / 3;
    }
    // The fewer ranks, the sooner the heat bath has seen all pairs often enough.
    const int ranks = std::min(problem.current.num_ranks(), 32);
    effort.sweeps = std::max(1, effort.sweeps * (8 + ranks) / 40);
    if (time_budget_s_) effort.seconds = *time_budget_s_ / problem.load.num_layers;
    Work work{effort,
              layer_episodes(problem.load, problem.history, layer, effort.max_episodes,
                             problem.current.num_ranks()),
              0,
              {.max_moves = problem.limits.max_moves_per_layer,
               .max_receive = problem.limits.max_receive_per_rank}};
    if (work.episodes.count == 0) return work;
    if (work.episodes.count > 1) exaggerate(work.episodes, kExaggeration);
    const bool is_small =
        work.episodes.count > 1 && !time_budget_s_ && !slots.current(layer).empty() &&
        work_to_grow(slots.task(layer, work.episodes, 0)) <= effort.small_grow_work;
    work.move_price = price(problem, layer, slots, effort, is_small);
    if (!move_price_ && problem.history == nullptr)
      work.effort.near_price = kDriftPrice / problem.current.num_ranks();
    return work;
  }

  std::vector<int32_t> plan_one(const Problem& problem, int layer, const SearchedSlots& slots,
                                const Noise& noise) const {
    const Work work = work_of(problem, layer, slots);
    const bool has_wires = problem.has_wires() && problem.topology.num_nodes() <= kMostWireNodes;
    if (has_rules(problem)) {
      std::vector<int32_t> placement = by_rules(problem, layer, work, work.move_price);
      return has_wires ? for_wires(problem, layer, std::move(placement)) : placement;
    }
    if (work.episodes.count == 0) return to_vector(problem.current.logical(layer));
    const LayerTask task = slots.task(layer, work.episodes, work.move_price);
    std::vector<int32_t> placement =
        slots.complete(plan_layer(task, slots.current(layer), work.effort, work.limits, noise));
    if (has_serving(problem)) {
      const ServedSteps steps = served_steps(problem, layer, kServedSteps);
      if (steps.load.num_steps == 0) return to_vector(problem.current.logical(layer));
      placement = search_served(served_task(problem, layer, steps, work),
                                aligned(problem, layer, placement));
    }
    return has_wires ? for_wires(problem, layer, std::move(placement)) : placement;
  }

  static bool has_rules(const Problem& problem) {
    return problem.rules.any() && problem.topology.num_nodes() > 1;
  }

  // The placement that keeps to the rules for nodes, level over the episodes. move_price: PAR that
  // a move must gain.
  std::vector<int32_t> by_rules(const Problem& problem, int layer, const Work& work,
                                double move_price) const {
    const int experts = problem.load.num_experts;
    const Episodes& episodes = work.episodes;
    std::vector<std::vector<double>> loads(1, std::vector<double>(cells(experts)));
    for (int k = 0; k < episodes.count; ++k) {
      std::vector<double>& run = loads.emplace_back();
      for (int e = 0; e < experts; ++e) {
        run.push_back(static_cast<double>(episodes.of(e)[cells(k)]));
        loads[0][cells(e)] += run.back() * static_cast<double>(episodes.weight[cells(k)]);
      }
    }
    if (episodes.count == 1) loads.pop_back();
    return search_by_rules({.slots = SlotRanges(problem.current.first_slots()),
                            .topology = problem.topology,
                            .num_experts = experts,
                            .num_groups = problem.num_groups,
                            .rules = problem.rules,
                            .layer = layer,
                            .loads = loads,
                            .move_price = move_price,
                            .current = problem.current.logical(layer),
                            .steps = episodes.count > 0 ? effort_.node_steps : 0,
                            .stop = problem.stop});
  }

  static bool has_sources(const Problem& problem) { return !problem.tokens->source_rank.empty(); }

  // The placement with less or cheaper traffic, its peaks within the slack.
  std::vector<int32_t> for_wires(const Problem& problem, int layer,
                                 std::vector<int32_t> placement) const {
    const std::span<const int32_t> current = problem.current.logical(layer);
    const SlotRanges slots(problem.current.first_slots());
    placement = align_ranks(current, placement, slots, problem.load.num_experts, problem.topology);
    std::vector<std::vector<double>> loads;
    const auto add = [&](StepRange steps) {
      const std::vector<int64_t> sum = sum_of_steps(problem.load, layer, steps);
      loads.emplace_back(sum.begin(), sum.end());
    };
    add({0, problem.load.num_steps});
    const EpisodeCut cut = EpisodeCut::spread(problem.load.num_steps, effort_.wire_runs);
    for (int64_t i = 0; problem.load.num_steps > 1 && i < cut.count(); ++i) add(cut[i]);
    const RuleKeeper rules(problem.rules, problem.num_groups);
    return search_wires(
        {.slots = slots,
         .rules = rules,
         .topology = problem.topology,
         .tokens = *problem.tokens,
         .layer = layer,
         .loads = loads,
         .slack = problem.wire_slack,
         .move_price = problem.history == nullptr ? 0 : kWireMovePrice,
         .current = current,
         .max_tokens = effort_.wire_tokens,
         .steps = problem.topology.has_prices()
                      ? effort_.price_steps
                      : std::min(effort_.wire_steps, effort_.wire_work / slots.num_slots()),
         .stop = problem.stop},
        std::move(placement));
  }

  // Placements with fewer moves than the plan of plan_one(), and that one.
  std::vector<std::vector<int32_t>> alternatives(const Problem& problem, int layer,
                                                 const SearchedSlots& slots,
                                                 const Noise& noise) const {
    if (has_rules(problem)) return alternatives_by_rules(problem, layer, slots);
    const std::span<const int32_t> current = slots.current(layer);
    if (current.empty()) return {};  // what lies on the way to the plan is all there is
    Work work = work_of(problem, layer, slots);
    if (work.episodes.count == 0) return {};
    work.effort.seconds = 0;
    // The limits over all layers hold for each of them.
    if (problem.limits.max_bytes != PlanLimits::kNone && !problem.wants_curve) {
      work.limits.max_moves =
          std::min(work.limits.max_moves, problem.limits.max_bytes / problem.expert_bytes);
    }
    const LayerTask task = slots.task(layer, work.episodes, work.move_price);
    constexpr LayerLimits kNoLimits{.max_moves = PlanLimits::kNone,
                                    .max_receive = PlanLimits::kNone};
    const std::vector<int32_t> plan = plan_layer(task, current, work.effort, kNoLimits, noise);
    // Without a history the frame goes by the window as it was.
    const Episodes plain = layer_episodes(problem.load, problem.history, layer,
                                          work.effort.max_episodes, problem.current.num_ranks());
    const LayerTask judged =
        slots.task(layer, problem.history == nullptr ? plain : work.episodes, 0);
    std::vector<std::vector<int32_t>> found =
        layer_frontier(judged, current, plan, work.effort, work.limits, noise);
    if (!has_serving(problem)) return found;
    const ServedSteps steps = served_steps(problem, layer, kServedSteps);
    if (steps.load.num_steps == 0) return {};
    for (std::vector<int32_t>& placement : found) placement = aligned(problem, layer, placement);
    return served_frontier(served_task(problem, layer, steps, work), aligned(problem, layer, plan),
                           found);
  }

  // The same where there are rules for nodes: moves get dearer and dearer.
  std::vector<std::vector<int32_t>> alternatives_by_rules(const Problem& problem, int layer,
                                                          const SearchedSlots& slots) const {
    const Work work = work_of(problem, layer, slots);
    std::vector<std::vector<int32_t>> found;
    for (const double price : {0.001, 0.004, 0.016, 0.064, 0.256})
      found.push_back(by_rules(problem, layer, work, price));
    return found;
  }

  // Is there more to a plan than equal shares in rows?
  static bool has_serving(const Problem& problem) {
    return problem.cost != nullptr || problem.split == SplitRule::kSplit;
  }

  static Serving serving_of(const Problem& problem) {
    return {problem.split, problem.cost, problem.topology.node_of_rank};
  }

  static std::vector<int32_t> aligned(const Problem& problem, int layer,
                                      const std::vector<int32_t>& placement) {
    const std::span<const int32_t> current = problem.current.logical(layer);
    const SlotRanges slots(problem.current.first_slots());
    return align_slots(
        current, align_ranks(current, placement, slots, problem.load.num_experts, problem.topology),
        slots);
  }

  ServedTask served_task(const Problem& problem, int layer, const ServedSteps& steps,
                         const Work& work) const {
    return {.current = problem.current,
            .layer = layer,
            .steps = steps,
            .serving = serving_of(problem),
            .move_price = work.move_price,
            .limits = work.limits,
            .estimates = effort_.served_estimates};
  }

  double price(const Problem& problem, int layer, const SearchedSlots& slots, const Effort& effort,
               bool is_small) const {
    if (move_price_) return *move_price_;
    const double ranks = problem.current.num_ranks();
    if (is_small) return kSmallPrice / ranks;
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
