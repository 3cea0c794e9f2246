// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

namespace trimtab::cli {

namespace {

class StepPar {
 public:
  StepPar(const Placement& placement, int layer)
      : placement_(placement), map_(placement.logical(layer)), share_(static_cast<size_t>(placement.num_experts())) {
    for (const int32_t expert : map_) share_[static_cast<size_t>(expert)] += 1;
    for (double& share : share_) share = 1 / share;
  }

  double operator()(std::span<const int64_t> counts) const {
    double peak = 0, sum = 0;
    for (int rank = 0; rank < placement_.num_ranks(); ++rank) {
      double load = 0;
      for (int slot = placement_.first_slot(rank); slot < placement_.first_slot(rank + 1); ++slot) {
        const auto expert = static_cast<size_t>(map_[static_cast<size_t>(slot)]);
        load += static_cast<double>(counts[expert]) * share_[expert];
      }
      peak = std::max(peak, load);
      sum += load;
    }
    return sum > 0 ? peak * placement_.num_ranks() / sum : 1.0;
  }

 private:
  const Placement& placement_;
  std::span<const int32_t> map_;
  std::vector<double> share_;  // [experts]: of an expert's tokens that each copy gets
};

// E[max] / mean of n independent Poisson counts. E[max] is the sum over k >= 0 of P(max > k); outside of 12 standard
// deviations the terms are 1 or 0 to double precision.
double expected_poisson_par(double mean, int n) {
  constexpr double kLarge = 1e8;  // beyond, what is above 1 shrinks with the root of the mean
  if (mean > kLarge) return 1 + (expected_poisson_par(kLarge, n) - 1) * std::sqrt(kLarge / mean);
  const double reach = 12 * std::sqrt(mean) + 30;
  const double first = std::max(0.0, std::floor(mean - reach));
  double expected = first, below = 0;
  for (double k = first; k <= mean + reach; ++k) {
    below = std::min(1.0, below + std::exp(k * std::log(mean) - mean - std::lgamma(k + 1)));
    expected += 1 - std::pow(below, n);
  }
  return expected / mean;
}

}  // namespace

LayerLevel measure(const Placement& placement, const Load& load, int layer) {
  const StepPar par(placement, layer);
  LayerLevel level;
  level.par = par(sum_of_steps(load, layer, 0, load.num_steps));
  double sum = 0;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const double value = par(load.at(step, layer));
    sum += value;
    if (value > level.par_step_worst) {
      level.par_step_worst = value;
      level.worst_step = step;
    }
  }
  level.par_step_mean = sum / static_cast<double>(load.num_steps);
  return level;
}

std::vector<int64_t> sum_of_steps(const Load& load, int layer, int64_t first, int64_t last) {
  std::vector<int64_t> sum(static_cast<size_t>(load.num_experts));
  for (int64_t step = first; step < last; ++step) {
    const std::span<const int64_t> counts = load.at(step, layer);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += counts[e];
  }
  return sum;
}

int64_t duplicate_slots(const Placement& placement, int layer) {
  const std::span<const int32_t> map = placement.logical(layer);
  int64_t duplicates = 0;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    const auto first = map.begin() + placement.first_slot(rank);
    const auto last = map.begin() + placement.first_slot(rank + 1);
    for (auto slot = first; slot != last; ++slot) duplicates += std::find(first, slot, *slot) != slot ? 1 : 0;
  }
  return duplicates;
}

double noise_floor(const Load& load, int layer, int num_ranks) {
  std::map<int64_t, double> known;  // steps of a serving engine often have the same number of tokens
  double sum = 0;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const std::span<const int64_t> counts = load.at(step, layer);
    const int64_t tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const auto [entry, is_new] = known.try_emplace(tokens, 1.0);
    if (is_new && tokens > 0) entry->second = expected_poisson_par(static_cast<double>(tokens) / num_ranks, num_ranks);
    sum += entry->second;
  }
  return sum / static_cast<double>(load.num_steps);
}

Drift drift(const Load& load, int layer, int64_t window) {
  const auto shares = [&](int64_t w) {
    const std::vector<int64_t> counts = sum_of_steps(load, layer, w * window, (w + 1) * window);
    const auto total =
        static_cast<double>(std::max<int64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 1));
    std::vector<double> result;
    for (const int64_t count : counts) result.push_back(static_cast<double>(count) / total);
    return result;
  };
  Drift result;
  const int64_t windows = load.num_steps / window;
  std::vector<double> before = shares(0);
  for (int64_t w = 1; w < windows; ++w) {
    std::vector<double> now = shares(w);
    double change = 0;
    for (size_t e = 0; e < now.size(); ++e) change += std::abs(now[e] - before[e]) / 2;
    result.mean += change / static_cast<double>(windows - 1);
    result.worst = std::max(result.worst, change);
    before = std::move(now);
  }
  return result;
}

}  // namespace trimtab::cli
