// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "trimtab/par.h"

namespace trimtab {
namespace {

// As std::lgamma, which also writes a global variable.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double power(double base, int exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 == 1) result *= base;
  }
  return result;
}

// The PAR of ranks whose loads are chance alone.
struct ChancePar {
  double mean = 1, variance = 0;
};

// E[max] / mean of n independent Poisson counts. E[max] is the sum over k >= 0 of P(max > k), and
// E[max^2] that of (2k + 1) P(max > k); outside of 12 standard deviations the probabilities are 1
// or 0 to double precision. How much all counts have together says nothing of how level they are,
// so its share of the variance, that of the mean count, is left out. It takes time in proportion to
// the root of the mean.
ChancePar summed_poisson_par(double mean, int n) {
  const double reach = 12 * std::sqrt(mean) + 30;
  const double first = std::max(0.0, std::floor(mean - reach));
  double equal = std::exp(first * std::log(mean) - mean - log_gamma(first + 1));  // P(count == k)
  double expected = first, squares = first * first, below = 0;
  for (double k = first; k <= mean + reach; ++k) {
    below = std::min(1.0, below + equal);
    const double above = 1 - power(below, n);
    expected += above;
    squares += (2 * k + 1) * above;
    equal *= mean / (k + 1);
  }
  const double variance = squares - expected * expected - mean / n;
  return {expected / mean, std::max(0.0, variance) / (mean * mean)};
}

// The PAR by chance of ranks that all expect the same number of tokens. It keeps what it has
// computed: steps of a serving engine, and the layers of a step, often have the same number.
class ExpectedPar {
 public:
  explicit ExpectedPar(int num_ranks) : num_ranks_(num_ranks) {}

  ChancePar of(int64_t tokens) {
    if (tokens <= 0) return {};
    const auto [entry, is_new] = known_.try_emplace(tokens);
    if (is_new) entry->second = compute(static_cast<double>(tokens) / num_ranks_);
    return entry->second;
  }

  // Of the mean over steps that are independent.
  ChancePar mean_of_steps(std::span<const int64_t> step_tokens) {
    if (step_tokens.empty()) return {};
    ChancePar sum{0, 0};
    for (const int64_t tokens : step_tokens) {
      const ChancePar one = of(tokens);
      sum.mean += one.mean;
      sum.variance += one.variance;
    }
    const auto steps = static_cast<double>(step_tokens.size());
    return {sum.mean / steps, sum.variance / (steps * steps)};
  }

 private:
  // Beyond this mean the sum is not computed. What is above 1 is there a / root(mean) + b / mean,
  // up to terms of higher order that are below 1e-6; a and b are such that this mean and four times
  // it have what the sums say. The variance falls as 1 / mean.
  static constexpr double kLargeMean = 1e4;
  struct Large {
    double a = 0, b = 0, variance = 0;
  };

  ChancePar compute(double mean) {
    if (mean <= kLargeMean) return summed_poisson_par(mean, num_ranks_);
    if (!large_) large_ = fit_large();
    return {1 + large_->a / std::sqrt(mean) + large_->b / mean, large_->variance / mean};
  }

  Large fit_large() const {
    const ChancePar at_one = summed_poisson_par(kLargeMean, num_ranks_);
    const double one = at_one.mean - 1;
    const double four = summed_poisson_par(4 * kLargeMean, num_ranks_).mean - 1;
    return {std::sqrt(kLargeMean) * (4 * four - one), 2 * kLargeMean * (one - 2 * four),
            kLargeMean * at_one.variance};
  }

  int num_ranks_;
  std::map<int64_t, ChancePar> known_;  // by the tokens of a step
  std::optional<Large> large_;
};

}  // namespace

double noise_floor(std::span<const int64_t> step_tokens, int num_ranks) {
  return ExpectedPar(num_ranks).mean_of_steps(step_tokens).mean;
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

// The value, or none where chance may well leave it.
double surely(double above, double deviation) {
  constexpr double kSure = 4;  // of hundreds of level windows none is above
  return above > kSure * deviation ? above : std::min(above, 0.0);
}

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
  ExpectedPar chance(loads.num_ranks());
  double steps_variance = 0, window_variance = 0;
  for (int layer = 0; layer < layers; ++layer) {
    const std::vector<int64_t> tokens = tokens_of(loads, layer, loads.all_steps());
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    const Levelness level = levelness(loads, layer);
    const ChancePar steps = chance.mean_of_steps(tokens), window = chance.of(all);
    above.steps += (level.par_step_mean - steps.mean) / layers;
    above.window += (level.par - window.mean) / layers;
    steps_variance += steps.variance;
    window_variance += window.variance;
  }
  above.steps = surely(above.steps, std::sqrt(steps_variance) / layers);
  above.window = surely(above.window, std::sqrt(window_variance) / layers);
  return above;
}

bool is_worth_planning(const AboveChance& above, double plan_above_par) {
  return std::max(above.steps, above.window) > plan_above_par - 1;
}

}  // namespace trimtab
