// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "trimtab/par.h"

namespace trimtab {
namespace {

// As std::lgamma, which also writes a global variable.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

// E[max] / mean of n independent Poisson counts. E[max] is the sum over k >= 0 of P(max > k);
// outside of 12 standard deviations the terms are 1 or 0 to double precision.
double expected_poisson_par(double mean, int n) {
  constexpr double kLarge = 1e8;  // beyond, what is above 1 shrinks with the root of the mean
  if (mean > kLarge) return 1 + (expected_poisson_par(kLarge, n) - 1) * std::sqrt(kLarge / mean);
  const double reach = 12 * std::sqrt(mean) + 30;
  const double first = std::max(0.0, std::floor(mean - reach));
  double expected = first, below = 0;
  for (double k = first; k <= mean + reach; ++k) {
    below = std::min(1.0, below + std::exp(k * std::log(mean) - mean - log_gamma(k + 1)));
    expected += 1 - std::pow(below, n);
  }
  return expected / mean;
}

}  // namespace

double noise_floor(std::span<const int64_t> step_tokens, int num_ranks) {
  if (step_tokens.empty()) return 1;
  // Steps of a serving engine often have the same number of tokens.
  std::map<int64_t, double> known;
  double sum = 0;
  for (const int64_t tokens : step_tokens) {
    const auto [entry, is_new] = known.try_emplace(tokens, 1.0);
    if (is_new && tokens > 0)
      entry->second = expected_poisson_par(static_cast<double>(tokens) / num_ranks, num_ranks);
    sum += entry->second;
  }
  return sum / static_cast<double>(step_tokens.size());
}

double noise_floor(const Load& load, int layer, int num_ranks) {
  std::vector<int64_t> tokens;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const std::span<const int64_t> counts = load.at(step, layer);
    tokens.push_back(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  }
  return noise_floor(tokens, num_ranks);
}

namespace {

// [steps]
std::vector<int64_t> tokens_of(const RankLoads& loads, int layer, StepRange steps) {
  std::vector<int64_t> tokens;
  for (int64_t step = steps.first; step < steps.last; ++step) {
    const std::span<const double> of_ranks = loads.at(step, layer);
    tokens.push_back(std::llround(std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0)));
  }
  return tokens;
}

}  // namespace

double noise_floor(const RankLoads& loads, int layer, StepRange steps) {
  return noise_floor(tokens_of(loads, layer, steps), loads.num_ranks());
}

AboveChance above_chance(const RankLoads& loads) {
  AboveChance above;
  const int layers = loads.num_layers();
  for (int layer = 0; layer < layers; ++layer) {
    const std::vector<int64_t> tokens = tokens_of(loads, layer, loads.all_steps());
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    const Levelness level = levelness(loads, layer);
    above.steps += (level.par_step_mean - noise_floor(tokens, loads.num_ranks())) / layers;
    above.window += (level.par - noise_floor({&all, 1}, loads.num_ranks())) / layers;
  }
  return above;
}

bool is_worth_planning(const AboveChance& above, double plan_above_par) {
  return std::max(above.steps, above.window) > plan_above_par - 1;
}

}  // namespace trimtab
