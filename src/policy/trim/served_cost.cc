// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/served_cost.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "load/episodes.h"
#include "policy/layer_placement.h"
#include "policy/one_layer.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

void add_step(std::span<const int64_t> counts, double weight, ServedSteps& steps) {
  if (weight <= 0 || std::ranges::all_of(counts, [](int64_t count) { return count == 0; })) return;
  steps.load.counts.insert(steps.load.counts.end(), counts.begin(), counts.end());
  ++steps.load.num_steps;
  steps.weights.push_back(weight);
}

// What an expert costs for its rows, at nominal speed: picoseconds, or rows.
double cost_of(const CostModel* cost, int64_t rows) {
  return static_cast<double>(cost == nullptr ? rows : cost->time(rows));
}

// Marks a rank that gets nothing of an expert.
constexpr double kLeftOut = -1;

std::vector<double> slowness_of(const CostModel* cost, int num_ranks) {
  std::vector<double> slowness(cells(num_ranks), 1);
  if (cost == nullptr || !cost->has_speeds()) return slowness;
  for (size_t r = 0; r < slowness.size(); ++r)
    slowness[r] = double{CostModel::kNominalSpeed} / cost->speeds()[r];
  return slowness;
}

}  // namespace

ServedSteps served_steps(const Problem& problem, int layer, int max_count) {
  const Load& window =
      problem.cost != nullptr && problem.steps != nullptr ? *problem.steps : problem.load;
  ServedSteps steps{.load = {0, 1, window.num_experts, {}}, .weights = {}};
  const EpisodeCut cut = EpisodeCut::spread(window.num_steps, max_count);
  if (problem.cost != nullptr) {
    for (int64_t i = 0; i < cut.count(); ++i)
      add_step(window.at(cut[i].first, layer), static_cast<double>(cut[i].size()), steps);
  } else {
    const History* const history = problem.history;
    const int64_t remembered = history == nullptr ? 0 : history->episodes.num_steps;
    for (int64_t k = std::max<int64_t>(0, remembered - max_count); k < remembered; ++k)
      add_step(history->episodes.at(k, layer), history->weights[k], steps);
    for (int64_t i = 0; i < cut.count(); ++i) {
      add_step(sum_of_steps(window, layer, cut[i]), static_cast<double>(cut[i].size()), steps);
    }
  }
  const double all = std::accumulate(steps.weights.begin(), steps.weights.end(), 0.0);
  for (double& weight : steps.weights) weight /= all;
  return steps;
}

double served_cost(const Placement& like, std::span<const int32_t> logical,
                   const ServedSteps& steps, const Serving& serving) {
  const std::vector<double> peaks =
      served_pars(one_layer(like, logical), 0, steps.load, 0, serving);
  return std::inner_product(peaks.begin(), peaks.end(), steps.weights.begin(), 0.0);
}

QuickCost::QuickCost(const ServedSteps& steps, SlotRanges slots, const Serving& serving)
    : steps_(steps),
      slots_(slots),
      serving_(serving),
      experts_(steps.load.num_experts),
      slowness_(slowness_of(serving.cost, slots.num_ranks())),
      first_(cells(experts_ + 1)),
      holder_(cells(slots.num_slots())),
      replicas_(cells(experts_)),
      chosen_(cells(experts_)),
      flow_(cells(slots.num_slots())),
      load_(cells(slots.num_ranks())) {
  for (const double slowness : slowness_) speed_.push_back(1 / slowness);
  // Dividing an expert may add this part of its cost before it is better kept together.
  constexpr double kLittle = 0.05;
  const bool is_time = serving.sharing == SplitRule::kTime && serving.cost != nullptr;
  const CostModel in_rows = CostModel::of_rows();
  const CostModel& in_time = serving.cost != nullptr ? *serving.cost : in_rows;
  const std::vector<double> means = mean_times(steps.load, 0, in_time, slots.num_ranks());
  for (int64_t step = 0; step < steps.load.num_steps; ++step) {
    const double unit = 1e-12 / means[step];
    unit_.push_back(unit);
    for (const int64_t rows : steps.load.at(step, 0)) {
      const double all = cost_of(serving.cost, rows);
      const double halves =
          cost_of(serving.cost, rows / 2) + cost_of(serving.cost, rows - rows / 2);
      whole_.push_back(all * unit);
      is_divided_.push_back(!is_time || halves <= (1 + kLittle) * all ? 1 : 0);
    }
    const auto costs = std::span(whole_).last(cells(experts_));
    const std::vector<int32_t> order =
        sorted_ids(experts_, [&](int32_t a, int32_t b) { return costs[a] > costs[b]; });
    order_.insert(order_.end(), order.begin(), order.end());
  }
}

QuickCost::Value QuickCost::of(std::span<const int32_t> logical) {
  const bool is_free =
      serving_.sharing == SplitRule::kSplit || serving_.sharing == SplitRule::kTime;
  find_holders(logical);
  Value value;
  for (int64_t step = 0; step < steps_.load.num_steps; ++step) {
    std::ranges::fill(load_, 0);
    if (is_free) {
      place_whole(step);
      level_out(step);
    } else {
      share_equally(step, logical);
    }
    double squares = 0;
    for (const double load : load_) squares += load * load;
    value.peak += steps_.weights[step] * std::ranges::max(load_);
    value.squares += steps_.weights[step] * squares / static_cast<double>(load_.size());
  }
  return value;
}

void QuickCost::find_holders(std::span<const int32_t> logical) {
  std::ranges::fill(first_, 0);
  std::ranges::fill(replicas_, 0);
  const auto for_each = [&](auto&& visit) {
    for (int r = 0; r < slots_.num_ranks(); ++r) {
      const auto on_rank = slots_.of(r, logical);
      for (auto at = on_rank.begin(); at != on_rank.end(); ++at) {
        const bool is_first = std::find(on_rank.begin(), at, *at) == at;
        visit(*at, r, is_first);
      }
    }
  };
  for_each([&](int32_t expert, int, bool is_first) {
    ++replicas_[expert];
    first_[expert + 1] += is_first ? 1 : 0;
  });
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  for_each([&](int32_t expert, int rank, bool is_first) {
    if (is_first) holder_[first_[expert]++] = rank;
  });
  std::rotate(first_.begin(), first_.end() - 1, first_.end());
  first_[0] = 0;
}

void QuickCost::share_equally(int64_t step, std::span<const int32_t> logical) {
  const auto counts = steps_.load.at(step, 0);
  for (int r = 0; r < slots_.num_ranks(); ++r) {
    for (const int32_t e : slots_.of(r, logical)) {
      const int32_t n = replicas_[e];
      const double share = serving_.cost == nullptr
                               ? whole(step, e) / n
                               : unit_[step] * cost_of(serving_.cost, (counts[e] + n - 1) / n);
      load_[r] += share * slowness_[r];
    }
  }
}

// Experts that stay together, most cost first, each on its rank that is done first, and twice more
// when all others have a rank; what is divided begins in equal parts.
void QuickCost::place_whole(int64_t step) {
  for (int32_t e = 0; e < experts_; ++e) {
    if (num_holders(e) > 1 && is_divided_[step * experts_ + e] == 0) continue;
    for (int32_t h = first_[e]; h < first_[e + 1]; ++h) {
      flow_[h] = whole(step, e) / num_holders(e);
      load_[holder_[h]] += flow_[h] * slowness_[holder_[h]];
    }
  }
  constexpr int kSweeps = 3;
  for (int64_t i = 0; i < kSweeps * experts_; ++i) {
    const int32_t e = order_[step * experts_ + i % experts_];
    if (num_holders(e) == 1 || is_divided_[step * experts_ + e] != 0) continue;
    const auto done = [&](int32_t rank) { return load_[rank] + whole(step, e) * slowness_[rank]; };
    const auto of_expert = std::span(holder_).subspan(first_[e], cells(num_holders(e)));
    int32_t& chosen = chosen_[e];
    if (i >= experts_) load_[chosen] -= whole(step, e) * slowness_[chosen];
    chosen = *std::ranges::min_element(of_expert, {}, done);
    load_[chosen] = done(chosen);
  }
}

// Levels the ranks of one divided expert after the other, until little changes: coordinate descent
// on the sum of squares, whose least is level wherever the replicas allow it.
void QuickCost::level_out(int64_t step) {
  constexpr int kMostSweeps = 24;
  constexpr double kLittle = 1e-4;
  double before = 0;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool any = false;
    for (int32_t e = 0; e < experts_; ++e) {
      if (num_holders(e) == 1 || is_divided_[step * experts_ + e] == 0 || whole(step, e) == 0)
        continue;
      fill(step, e);
      any = true;
    }
    const double peak = any ? std::ranges::max(load_) : 0;
    if (!any || (sweep > 1 && before - peak < kLittle)) return;
    before = peak;
  }
}

// Takes one expert off its ranks and gives it to them again like water into vessels.
void QuickCost::fill(int64_t step, int32_t expert) {
  const int32_t first = first_[expert], end = first_[expert + 1];
  double amount = whole(step, expert), width = 0;
  for (int32_t h = first; h < end; ++h) {
    const int32_t rank = holder_[h];
    load_[rank] -= flow_[h] * slowness_[rank];
    flow_[h] = 0;
    amount += load_[rank] * speed_[rank];
    width += speed_[rank];
  }
  // The level at which the vessels below it hold it all: those above it are left out.
  double level = amount / width;
  for (bool again = true; again;) {
    again = false;
    for (int32_t h = first; h < end; ++h) {
      const int32_t rank = holder_[h];
      if (flow_[h] < 0 || load_[rank] <= level) continue;
      flow_[h] = kLeftOut;
      amount -= load_[rank] * speed_[rank];
      width -= speed_[rank];
      again = true;
    }
    if (again) level = amount / width;
  }
  for (int32_t h = first; h < end; ++h) {
    const int32_t rank = holder_[h];
    flow_[h] = flow_[h] < 0 ? 0 : (level - load_[rank]) * speed_[rank];
    load_[rank] += flow_[h] * slowness_[rank];
  }
}

}  // namespace trimtab
