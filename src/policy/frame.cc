// SPDX-License-Identifier: Apache-2.0
#include "policy/frame.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/cat.h"
#include "load/replicas.h"
#include "policy/align.h"
#include "policy/bounds.h"
#include "policy/budget.h"
#include "policy/layer_placement.h"
#include "policy/limits.h"
#include "policy/one_layer.h"
#include "split/split_loads.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

void validate_counts(const Load& load) {
  if (load.num_steps < 0 || load.num_layers < 1 || load.num_experts < 1 ||
      load.counts.size() != cells(load.num_steps, load.num_layers, load.num_experts)) {
    throw InvalidArgument(cat("load of ", load.num_steps, " steps x ", load.num_layers,
                              " layers x ", load.num_experts, " experts holds ", load.counts.size(),
                              " counts"));
  }
  std::vector<int64_t> sum(load.num_layers, 0);
  for (int64_t t = 0; t < load.num_steps; ++t) {
    for (int l = 0; l < load.num_layers; ++l) {
      const std::span<const int64_t> counts = load.at(t, l);
      for (size_t e = 0; e < counts.size(); ++e) {
        if (counts[e] < 0) {
          throw InvalidArgument(
              cat("load of layer ", l, ", step ", t, ", expert ", e, " is negative: ", counts[e]));
        }
        if (counts[e] > std::numeric_limits<int64_t>::max() - sum[l]) {
          throw InvalidArgument(cat("load of layer ", l, ", step ", t, ", expert ", e,
                                    " is too large: the layer's sum, ", sum[l], " so far, and ",
                                    counts[e], " do not fit in 64 bits"));
        }
        sum[l] += counts[e];
      }
    }
  }
}

void validate_limits(const PlanLimits& limits, int64_t expert_bytes) {
  for (const auto& [name, value] : {std::pair{"max_moves_per_layer", limits.max_moves_per_layer},
                                    {"max_bytes", limits.max_bytes},
                                    {"max_layers", limits.max_layers},
                                    {"max_receive_per_rank", limits.max_receive_per_rank},
                                    {"expert_bytes", expert_bytes}}) {
    if (value < 0) throw InvalidArgument(cat(name, " is negative: ", value));
  }
  if (limits.max_bytes != PlanLimits::kNone && expert_bytes == 0) {
    throw InvalidArgument(cat("max_bytes is ", limits.max_bytes,
                              " but expert_bytes, the size of an expert, is not given"));
  }
}

void validate_serving(const Problem& problem) {
  if (problem.steps != nullptr) {
    validate_counts(*problem.steps);
    if (problem.steps->num_layers != problem.load.num_layers ||
        problem.steps->num_experts != problem.load.num_experts) {
      throw InvalidArgument(cat("single steps of ", problem.steps->num_layers, " layers x ",
                                problem.steps->num_experts, " experts, loads of ",
                                problem.load.num_layers, " x ", problem.load.num_experts));
    }
  }
  if (problem.split == SplitRule::kTime && problem.cost == nullptr)
    throw InvalidArgument("split rule time needs a cost model");
  if (problem.cost == nullptr || !problem.cost->has_speeds()) return;
  if (std::ssize(problem.cost->speeds()) == problem.current.num_ranks()) return;
  throw InvalidArgument(cat("the cost model has speeds of ", problem.cost->speeds().size(),
                            " ranks, the placement has ", problem.current.num_ranks()));
}

// What finish_plan works on: one layer after the other, then all of them.
class Finisher {
 public:
  Finisher(const Problem& problem, std::vector<int32_t> proposal, const FinishOptions& options)
      : problem_(problem), options_(options), proposal_(std::move(proposal)) {
    const size_t expected = cells(layers(), slots());
    if (proposal_.size() != expected) {
      throw InvalidArgument(cat("a proposal of ", proposal_.size(), " slots, expected ", expected));
    }
    for (int l = 0; l < layers(); ++l) check_experts(l);
    moves_.resize(layers());
    predictions_.resize(layers());
    high_before_.resize(layers());
  }

  Plan finish() {
    for (int l = 0; l < layers(); ++l) finish_layer(l);
    own_moves_ = std::accumulate(moves_.begin(), moves_.end(), int64_t{0});
    std::vector<CurvePoint> curve;
    if (problem_.wants_curve || !within_plan_limits()) {
      make_choices();
      if (problem_.wants_curve) curve = make_curve();
      if (!within_plan_limits()) spend_budget();
    }
    check_rules();
    Plan plan = make_plan();
    plan.curve = std::move(curve);
    return plan;
  }

 private:
  int layers() const { return problem_.current.num_layers(); }
  int slots() const { return problem_.current.num_slots(); }
  std::span<const int32_t> first_slots() const { return problem_.current.first_slots(); }
  std::span<const int32_t> current(int layer) const { return problem_.current.logical(layer); }
  std::span<int32_t> proposed(int layer) {
    return std::span(proposal_).subspan(cells(layer, slots()), cells(slots()));
  }

  // What a layer's placement is worth on the window.
  struct Measured {
    Levelness level;
    double par_time = 0, step_seconds = 0;  // with a cost model
  };

  // window: the layer's loads of all steps together.
  Measured measure(std::span<const int32_t> logical, int layer,
                   std::span<const int64_t> window) const {
    if (!problem_.split && problem_.cost == nullptr)
      return {levelness(rank_loads(logical, first_slots(), problem_.load, layer, window), 0)};
    const Placement placement = one_layer(problem_.current, logical);
    const Serving serving = {problem_.split, problem_.cost, problem_.topology.node_of_rank};
    Measured measured = {levelness(rank_loads(placement, 0, problem_.load, layer, serving), 0)};
    if (problem_.cost == nullptr) return measured;
    const Load& steps = problem_.steps != nullptr ? *problem_.steps : problem_.load;
    const RankLoads times = rank_times(placement, 0, steps, layer, serving);
    measured.par_time = mean_of(step_pars(times, 0));
    measured.step_seconds = mean_step_peak(times, 0);
    return measured;
  }

  void check_experts(int layer) {
    const int num_experts = problem_.current.num_experts();
    std::vector<bool> placed(num_experts, false);
    const std::span<const int32_t> placement = proposed(layer);
    for (size_t s = 0; s < placement.size(); ++s) {
      if (placement[s] < 0 || placement[s] >= num_experts) {
        throw InvalidArgument(
            cat("layer ", layer, ", slot ", s, ": expert ", placement[s], " of ", num_experts));
      }
      placed[placement[s]] = true;
    }
    const auto lost = std::find(placed.begin(), placed.end(), false);
    if (lost != placed.end()) {
      throw InvalidArgument(
          cat("layer ", layer, ": expert ", lost - placed.begin(), " has no slot"));
    }
  }

  // Which of the rules for nodes a placement of a layer breaks; empty: none.
  std::string breaks(std::span<const int32_t> placement) const {
    return broken_rule(problem_.rules, problem_.num_groups, problem_.load.num_experts, placement,
                       first_slots(), problem_.topology);
  }
  // Limits may leave a layer as it was, which may break a rule.
  void check_rules() {
    for (int layer = 0; layer < layers(); ++layer) {
      const std::string broken = breaks(proposed(layer));
      if (broken.empty()) continue;
      throw InvalidArgument(cat("layer ", layer, ": ", broken,
                                "; the limits on moves allow no placement that keeps to the rules "
                                "for nodes"));
    }
  }

  void keep(int layer) {
    LayerPrediction& p = predictions_[layer];
    std::copy(current(layer).begin(), current(layer).end(), proposed(layer).begin());
    moves_[layer] = 0;
    p.par_after = p.par_before;
    p.par_step_after = p.par_step_before;
    p.par_step_after_high = high_before_[layer];
    p.par_time_after = p.par_time_before;
    p.step_seconds_after = p.step_seconds_before;
    p.node_copies_after = p.node_copies_before;
    p.copies_cost_after = p.copies_cost_before;
  }

  // Copies of a token between nodes, and their cost; 0 where they are not known.
  void predict_wires(std::span<const int32_t> logical, int layer, double& node_copies,
                     double& cost) const {
    if (!problem_.has_wires()) return;
    const Topology& topology = problem_.topology;
    node_copies = copies_between_nodes(logical, first_slots(), topology.node_of_rank,
                                       *problem_.tokens, layer);
    if (topology.has_prices())
      cost = cost_of_copies(logical, first_slots(), topology, *problem_.tokens, layer);
  }
  void predict_wires_after(int layer) {
    LayerPrediction& p = predictions_[layer];
    predict_wires(proposed(layer), layer, p.node_copies_after, p.copies_cost_after);
  }

  // What a change of the layer gains: PAR, or with a cost model seconds of a step.
  double gain(const LayerPrediction& p) const {
    return problem_.cost == nullptr ? p.par_step_before - p.par_step_after
                                    : p.step_seconds_before - p.step_seconds_after;
  }

  void finish_layer(int layer) {
    LayerPrediction& p = predictions_[layer];
    const std::vector<int64_t> window = window_load(problem_.load, layer);
    const Measured before = measure(current(layer), layer, window);
    p.par_before = before.level.par;
    p.par_step_before = before.level.par_step_mean;
    high_before_[layer] = before.level.par_step_high;
    p.par_time_before = before.par_time;
    p.step_seconds_before = before.step_seconds;
    predict_wires(current(layer), layer, p.node_copies_before, p.copies_cost_before);
    predict_bounds(window, p);
    constexpr double kLevel = 1 + 1e-9;  // rounding of shares such as 1/3
    const bool in_rows = problem_.cost == nullptr || problem_.cost->is_proportional();
    const bool is_kept = breaks(current(layer)).empty();
    if (in_rows && p.par_step_before <= kLevel && !problem_.has_wires() && is_kept)
      return keep(layer);
    fit(layer, window);
    if (std::ranges::equal(proposed(layer), current(layer))) return keep(layer);
    if (is_kept && !breaks(proposed(layer)).empty()) return keep(layer);  // limits cut it short
    predict_after(layer, proposed(layer), window, p);
    predict_wires_after(layer);
    // Fewer or cheaper copies are a gain where the peak is as low as the slack allows.
    const bool fewer = problem_.topology.has_prices() ? p.copies_cost_after < p.copies_cost_before
                                                      : p.node_copies_after < p.node_copies_before;
    const bool wires = fewer && p.par_step_after <= p.par_step_before * (1 + problem_.wire_slack);
    if (options_.require_gain && gain(p) <= 0 && !wires && is_kept) return keep(layer);
    moves_[layer] = moves_to(layer, proposed(layer));
  }

  void predict_after(int layer, std::span<const int32_t> placement, std::span<const int64_t> window,
                     LayerPrediction& p) const {
    const Measured after = measure(placement, layer, window);
    p.par_after = after.level.par;
    p.par_step_after = after.level.par_step_mean;
    p.par_step_after_high = after.level.par_step_high;
    p.par_time_after = after.par_time;
    p.step_seconds_after = after.step_seconds;
  }

  int64_t moves_to(int layer, std::span<const int32_t> placement) const {
    const std::vector<int64_t> in = received(current(layer), placement, first_slots());
    return std::accumulate(in.begin(), in.end(), int64_t{0});
  }

  // Aligns the proposal of a layer and holds it to the limits that concern one layer.
  void fit(int layer, std::span<const int64_t> window) {
    std::vector<int32_t> placement = aligned(layer, to_vector(proposed(layer)));
    const PlanLimits& limits = problem_.limits;
    if (limits.max_moves_per_layer != PlanLimits::kNone ||
        limits.max_receive_per_rank != PlanLimits::kNone) {
      placement = within_move_limits(current(layer), placement, first_slots(), window,
                                     limits.max_moves_per_layer, limits.max_receive_per_rank);
    }
    std::ranges::copy(placement, proposed(layer).begin());
  }

  std::vector<int32_t> aligned(int layer, std::vector<int32_t> placement) const {
    if (options_.align_ranks) {
      placement = align_ranks(current(layer), placement, first_slots(), problem_.load.num_experts,
                              problem_.topology);
    }
    if (options_.align_slots) placement = align_slots(current(layer), placement, first_slots());
    return placement;
  }

  void predict_bounds(std::span<const int64_t> window, LayerPrediction& p) const {
    double total = 0;
    for (const int64_t w : window) total += static_cast<double>(w);
    if (total <= 0) return;
    const double mean = total / problem_.current.num_ranks();
    const PeakBounds bounds = peak_bounds(window, first_slots());
    p.bound_equal = std::max(1.0, bounds.equal / mean);
    p.bound_exact = std::max(1.0, bounds.exact / mean);
  }

  // Do the layers keep to the limits over all of them?
  bool within_plan_limits() const {
    return num_changed() <= problem_.limits.max_layers && own_moves_ <= max_moves();
  }
  int64_t num_changed() const {
    int64_t changed = 0;
    for (int layer = 0; layer < layers(); ++layer) changed += is_changed(layer) ? 1 : 0;
    return changed;
  }
  int64_t max_moves() const {
    const PlanLimits& limits = problem_.limits;
    return limits.max_bytes == PlanLimits::kNone ? PlanLimits::kNone
                                                 : limits.max_bytes / problem_.expert_bytes;
  }
  bool is_changed(int layer) const {
    const auto placement = std::span(proposal_).subspan(cells(layer, slots()), cells(slots()));
    return !std::ranges::equal(placement, current(layer));
  }

  // A placement that a layer may get instead of its proposal.
  struct Choice {
    std::vector<int32_t> placement;
    LayerPrediction prediction;
    Offer offer;
  };

  // What the layers may become that their policy wants to change. A layer that the policy leaves
  // alone is left alone here too.
  void make_choices() {
    choices_.resize(layers());
    for (int layer = 0; layer < layers(); ++layer) {
      if (is_changed(layer)) choices_[layer] = choices_of(layer);
    }
  }

  std::vector<Choice> choices_of(int layer) {
    const std::vector<int64_t> window = window_load(problem_.load, layer);
    const PlanLimits& limits = problem_.limits;
    std::vector<std::vector<int32_t>> placements =
        thinned(placements_between(current(layer), proposed(layer), first_slots(), window,
                                   limits.max_moves_per_layer, limits.max_receive_per_rank));
    if (options_.alternatives) {
      for (std::vector<int32_t>& one : options_.alternatives(layer))
        placements.push_back(aligned(layer, std::move(one)));
    }
    placements.push_back(to_vector(proposed(layer)));
    const double cost_now = options_.cost ? options_.cost(layer, current(layer)) : 0;
    std::vector<Choice> all;
    std::vector<Offer> offers;
    for (std::vector<int32_t>& placement : placements) {
      const std::vector<int64_t> in = received(current(layer), placement, first_slots());
      const int64_t moves = std::accumulate(in.begin(), in.end(), int64_t{0});
      if (moves > limits.max_moves_per_layer ||
          std::ranges::max(in) > limits.max_receive_per_rank ||
          std::ranges::equal(placement, current(layer)) || !breaks(placement).empty())
        continue;
      Choice choice{std::move(placement), predictions_[layer], {moves, 0}};
      predict_after(layer, choice.placement, window, choice.prediction);
      choice.offer.gain = options_.cost ? cost_now - options_.cost(layer, choice.placement)
                                        : gain(choice.prediction);
      offers.push_back(choice.offer);
      all.push_back(std::move(choice));
    }
    std::vector<Choice> kept;
    constexpr int kMostOffers = 64;
    for (const int i : worthwhile(offers, kMostOffers)) kept.push_back(std::move(all[cells(i)]));
    return kept;
  }

  // The first placements, and then fewer and fewer.
  static std::vector<std::vector<int32_t>> thinned(std::vector<std::vector<int32_t>> placements) {
    constexpr size_t kAll = 16, kParts = 16;
    std::vector<std::vector<int32_t>> kept;
    for (size_t i = 0; i < placements.size(); i += 1 + (i < kAll ? 0 : i / kParts))
      kept.push_back(std::move(placements[i]));
    return kept;
  }

  Budget budget(int64_t max_moves) const {
    std::vector<std::vector<Offer>> offers(cells(layers()));
    for (size_t l = 0; l < choices_.size(); ++l) {
      for (const Choice& choice : choices_[l]) offers[l].push_back(choice.offer);
    }
    return {std::move(offers), max_moves, problem_.limits.max_layers};
  }

  // Limits over all layers: every move goes where it gains most. There are no more moves than
  // without limits, since moves have their price.
  void spend_budget() {
    const Budget all = budget(std::min(max_moves(), own_moves_));
    const std::vector<int> chosen = all.choose(all.most_moves());
    for (int layer = 0; layer < layers(); ++layer) {
      if (chosen[cells(layer)] < 0) {
        keep(layer);
        continue;
      }
      const Choice& choice = choices_[layer][cells(chosen[cells(layer)])];
      std::ranges::copy(choice.placement, proposed(layer).begin());
      predictions_[layer] = choice.prediction;
      predict_wires_after(layer);
      moves_[layer] = choice.offer.moves;
    }
  }

  std::vector<CurvePoint> make_curve() const {
    const Budget all = budget(PlanLimits::kNone);
    std::vector<CurvePoint> curve;
    constexpr int64_t kAll = 16, kParts = 24;
    // With as many moves as it makes by itself, the plan is what it is by itself.
    const bool ends_with_own = num_changed() <= problem_.limits.max_layers;
    const int64_t most = std::min(
        all.most_moves(), ends_with_own ? std::max<int64_t>(own_moves_ - 1, 0) : own_moves_);
    for (int64_t moves = 0; moves <= most;) {
      const CurvePoint point = point_of(all.choose(moves));
      if (curve.empty() || point.par_step < curve.back().par_step ||
          (problem_.cost != nullptr && point.step_seconds < curve.back().step_seconds)) {
        curve.push_back(point);
      }
      if (moves == most) break;
      moves = std::min(most, moves + 1 + (moves < kAll ? 0 : moves / kParts));
    }
    const CurvePoint own = own_point();
    if (ends_with_own && own.moves > curve.back().moves &&
        (problem_.cost == nullptr ? own.par_step < curve.back().par_step
                                  : own.step_seconds < curve.back().step_seconds)) {
      curve.push_back(own);
    }
    return curve;
  }

  CurvePoint own_point() const {
    CurvePoint point{own_moves_, 0, 0, 0};
    for (const LayerPrediction& p : predictions_) {
      point.par += p.par_after / layers();
      point.par_step += p.par_step_after / layers();
      point.step_seconds += p.step_seconds_after / layers();
    }
    return point;
  }

  CurvePoint point_of(const std::vector<int>& chosen) const {
    CurvePoint point{0, 0, 0, 0};
    for (int layer = 0; layer < layers(); ++layer) {
      const int choice = chosen[cells(layer)];
      const LayerPrediction& p =
          choice < 0 ? predictions_[layer] : choices_[layer][cells(choice)].prediction;
      point.moves += choice < 0 ? 0 : choices_[layer][cells(choice)].offer.moves;
      point.par += choice < 0 ? p.par_before : p.par_after;
      point.par_step += choice < 0 ? p.par_step_before : p.par_step_after;
      point.step_seconds += choice < 0 ? p.step_seconds_before : p.step_seconds_after;
    }
    point.par /= layers();
    point.par_step /= layers();
    point.step_seconds /= layers();
    return point;
  }

  Plan make_plan() {
    std::vector<Move> moves;
    std::vector<int64_t> receive_peak;
    std::vector<int64_t> duplicates;
    bool changed = false;
    for (int layer = 0; layer < layers(); ++layer) {
      const std::span<const int32_t> placement = proposed(layer);
      changed |= !std::equal(placement.begin(), placement.end(), current(layer).begin());
      const std::vector<int64_t> in = received(current(layer), placement, first_slots());
      receive_peak.push_back(*std::max_element(in.begin(), in.end()));
      duplicates.push_back(duplicate_slots(placement, first_slots()));
      list_moves(layer, moves);
    }
    const uint64_t version = problem_.current.version() + (changed ? 1 : 0);
    const int64_t num_moves = std::ssize(moves);
    return {.placement = problem_.current.with(std::move(proposal_), version),
            .moves = std::move(moves),
            .receive_peak = std::move(receive_peak),
            .duplicates = std::move(duplicates),
            .layers = std::move(predictions_),
            .bytes = num_moves * problem_.expert_bytes,
            .history = {},
            .curve = {}};
  }

  void list_moves(int layer, std::vector<Move>& moves) {
    const std::span<const int32_t> placement = proposed(layer);
    for (size_t r = 0; r + 1 < first_slots().size(); ++r) {
      const auto old_rank =
          current(layer).subspan(first_slots()[r], first_slots()[r + 1] - first_slots()[r]);
      for (int32_t s = first_slots()[r]; s < first_slots()[r + 1]; ++s) {
        const int32_t expert = placement[s];
        const auto begin = placement.begin() + first_slots()[r];
        const bool duplicate =
            std::find(begin, placement.begin() + s, expert) != placement.begin() + s;
        if (duplicate || std::find(old_rank.begin(), old_rank.end(), expert) != old_rank.end())
          continue;
        moves.push_back({.layer = layer, .slot = s, .expert = expert});
      }
    }
  }

  const Problem& problem_;
  const FinishOptions options_;
  std::vector<int32_t> proposal_;  // [layers][slots], the proposal, becomes the plan's
  std::vector<int64_t> moves_;
  int64_t own_moves_ = 0;  // of the plan without limits over all layers
  std::vector<LayerPrediction> predictions_;
  std::vector<std::vector<Choice>> choices_;  // [layers], by ascending moves and gain
  std::vector<double> high_before_;  // [layers] par_step_after_high of a layer that stays as it is
};

}  // namespace

std::vector<int64_t> window_load(const Load& load, int layer) {
  return sum_of_steps(load, layer, {0, load.num_steps});
}

void validate(const Problem& problem) {
  const Load& load = problem.load;
  const Placement& current = problem.current;
  validate_counts(load);
  if (load.num_layers != current.num_layers() || load.num_experts != current.num_experts()) {
    throw InvalidArgument(cat("loads of ", load.num_layers, " layers x ", load.num_experts,
                              " experts, placement of ", current.num_layers(), " layers x ",
                              current.num_experts(), " experts"));
  }
  validate_limits(problem.limits, problem.expert_bytes);
  check_topology(problem.topology, current.num_ranks());
  validate_serving(problem);
  if (problem.tokens != nullptr) {
    check_tokens(*problem.tokens, load.num_layers, load.num_experts, current.num_ranks());
    if (!(problem.wire_slack >= 0))
      throw InvalidArgument(cat("wire_slack is ", problem.wire_slack, ", expected >= 0"));
  }
  if (problem.num_groups < 1 || current.num_experts() % problem.num_groups != 0) {
    throw InvalidArgument(cat(problem.num_groups, " expert groups do not divide ",
                              current.num_experts(), " experts"));
  }
  check_node_rules(problem.rules, problem.num_groups, current.num_experts(), current.first_slots(),
                   problem.topology);
  if (problem.history == nullptr || problem.history->episodes.num_steps == 0) return;
  const History& history = *problem.history;
  validate_counts(history.episodes);
  if (history.episodes.num_layers != load.num_layers ||
      history.episodes.num_experts != load.num_experts ||
      std::ssize(history.weights) != history.episodes.num_steps) {
    throw InvalidArgument(cat("a history of ", history.episodes.num_steps, " episodes x ",
                              history.episodes.num_layers, " layers x ",
                              history.episodes.num_experts, " experts and ", history.weights.size(),
                              " weights does not belong to loads of ", load.num_layers,
                              " layers x ", load.num_experts, " experts"));
  }
}

void refuse_rules(const Problem& problem, std::string_view policy) {
  if (!problem.rules.any() || problem.topology.num_nodes() < 2) return;
  throw InvalidArgument(cat("rules for nodes: ", policy,
                            " does not keep to them; trim does, and deepseek to that for groups"));
}

Plan finish_plan(const Problem& problem, std::vector<int32_t> proposal,
                 const FinishOptions& options) {
  return Finisher(problem, std::move(proposal), options).finish();
}

}  // namespace trimtab
