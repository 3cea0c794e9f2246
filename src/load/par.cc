// SPDX-License-Identifier: Apache-2.0
#include "trimtab/par.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "load/episodes.h"

namespace trimtab {
namespace {

template <class Tokens>
double peak_to_mean(std::span<const Tokens> loads) {
  Tokens sum = 0, peak = 0;
  for (const Tokens load : loads) {
    sum += load;
    peak = std::max(peak, load);
  }
  if (!(sum > 0)) return 1.0;
  return static_cast<double>(peak) * static_cast<double>(loads.size()) / static_cast<double>(sum);
}

}  // namespace

double par(std::span<const double> loads) {
  return peak_to_mean(loads);
}

double par(std::span<const int64_t> loads) {
  return peak_to_mean(loads);
}

std::vector<double> summed_loads(const RankLoads& loads, int layer, StepRange steps) {
  std::vector<double> sum(cells(loads.num_ranks()));
  for (int64_t step = steps.first; step < steps.last; ++step) {
    std::ranges::transform(sum, loads.at(step, layer), sum.begin(), std::plus());
  }
  return sum;
}

std::vector<double> window_pars(const RankLoads& loads) {
  std::vector<double> pars;
  for (int layer = 0; layer < loads.num_layers(); ++layer) pars.push_back(par(loads.window(layer)));
  return pars;
}

double window_par(const RankLoads& loads, StepRange steps) {
  std::vector<double> pars;
  for (int layer = 0; layer < loads.num_layers(); ++layer)
    pars.push_back(par(summed_loads(loads, layer, steps)));
  return mean_of(pars);
}

std::vector<double> step_pars(const RankLoads& loads, int layer, StepRange steps) {
  std::vector<double> pars;
  pars.reserve(cells(steps.size()));
  for (int64_t step = steps.first; step < steps.last; ++step)
    pars.push_back(par(loads.at(step, layer)));
  return pars;
}

std::vector<double> step_pars(const RankLoads& loads, int layer) {
  return step_pars(loads, layer, loads.all_steps());
}

double mean_step_peak(const RankLoads& loads, int layer) {
  std::vector<double> peaks;
  for (int64_t step = 0; step < loads.num_steps(); ++step)
    peaks.push_back(std::ranges::max(loads.at(step, layer)));
  return mean_of(peaks);
}

namespace {

// window: the loads of these steps together.
Levelness levelness_of(std::span<const double> window, std::span<const double> pars,
                       int64_t first_step) {
  Levelness level;
  level.par = par(window);
  if (pars.empty()) return level;
  level.par_step_mean = mean_of(pars);
  level.par_step_high = upper_95(pars);
  const auto worst = std::ranges::max_element(pars);
  if (*worst > level.par_step_worst) {
    level.par_step_worst = *worst;
    level.worst_step = first_step + (worst - pars.begin());
  }
  return level;
}

}  // namespace

Levelness levelness(const RankLoads& loads, int layer) {
  return levelness_of(loads.window(layer), step_pars(loads, layer), 0);
}

Levelness levelness(const RankLoads& loads, int layer, StepRange steps) {
  return levelness_of(summed_loads(loads, layer, steps), step_pars(loads, layer, steps),
                      steps.first);
}

Levelness mean_over_layers(std::span<const Levelness> layers) {
  if (layers.empty()) return {};
  const auto mean = [&](double Levelness::* figure) {
    std::vector<double> values;
    for (const Levelness& layer : layers) values.push_back(layer.*figure);
    return mean_of(values);
  };
  Levelness result = *std::ranges::max_element(layers, {}, &Levelness::par_step_worst);
  result.par = mean(&Levelness::par);
  result.par_step_mean = mean(&Levelness::par_step_mean);
  result.par_step_high = mean(&Levelness::par_step_high);
  return result;
}

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double upper_95(std::span<const double> series) {
  // Two-sided 95 % points of Student's t for 1..15 degrees of freedom.
  constexpr std::array<double, 15> kStudent = {12.706, 4.303, 3.182, 2.776, 2.571,
                                               2.447,  2.365, 2.306, 2.262, 2.228,
                                               2.201,  2.179, 2.160, 2.145, 2.131};
  const EpisodeCut runs = EpisodeCut::spread(std::ssize(series), std::ssize(kStudent) + 1);
  if (runs.count() < 2) return mean_of(series);
  std::vector<double> means;
  for (int64_t i = 0; i < runs.count(); ++i) {
    const StepRange run = runs[i];
    means.push_back(mean_of(series.subspan(cells(run.first), cells(run.size()))));
  }
  const double center = mean_of(means);
  double squares = 0;
  for (const double mean : means) squares += (mean - center) * (mean - center);
  const auto count = static_cast<double>(runs.count());
  return mean_of(series) +
         kStudent[cells(runs.count() - 2)] * std::sqrt(squares / (count - 1) / count);
}

}  // namespace trimtab
