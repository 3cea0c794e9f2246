// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_loads.h"

#include <algorithm>
#include <numeric>

#include "cli/plan/measure.h"
#include "trimtab/load.h"

namespace trimtab::cli {

RankLoads rank_loads_of(int64_t num_steps, int num_layers,
                        std::span<const std::span<const int32_t>> counts_of_rank) {
  RankLoads loads{num_steps, num_layers, static_cast<int>(counts_of_rank.size()), {}};
  const int64_t rows = num_steps * num_layers;  // of the table
  loads.rows.resize(static_cast<size_t>(rows * loads.num_ranks));
  for (size_t rank = 0; rank < counts_of_rank.size(); ++rank) {
    const int64_t slots = rows > 0 ? std::ssize(counts_of_rank[rank]) / rows : 0;
    auto count = counts_of_rank[rank].begin();
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row, count += slots) {
      loads.rows[row * counts_of_rank.size() + rank] =
          std::accumulate(count, count + slots, int64_t{0});
    }
  }
  return loads;
}

std::vector<Steps> thirds(const RankLoads& loads) {
  const int64_t n = loads.num_steps;
  if (n < 3) return {};
  return {{0, n / 3}, {n / 3, 2 * n / 3}, {2 * n / 3, n}};
}

std::vector<int64_t> sum_of(const RankLoads& loads, int layer, Steps steps) {
  std::vector<int64_t> sum(loads.num_ranks);
  for (int64_t step = steps.first; step < steps.last; ++step) {
    std::ranges::transform(sum, loads.at(step, layer), sum.begin(), std::plus());
  }
  return sum;
}

double summed_par(const RankLoads& loads, int layer, Steps steps) {
  return par(sum_of(loads, layer, steps));
}

double summed_par(const RankLoads& loads, Steps steps) {
  double sum = 0;
  for (int layer = 0; layer < loads.num_layers; ++layer) sum += summed_par(loads, layer, steps);
  return sum / loads.num_layers;
}

StepPars step_pars(const RankLoads& loads, int layer, Steps steps) {
  StepPars pars{0, 0, 1};
  std::vector<int64_t> tokens;
  for (int64_t step = steps.first; step < steps.last; ++step) {
    const std::span<const int64_t> of_ranks = loads.at(step, layer);
    const double of_step = par(of_ranks);
    pars.mean += of_step / static_cast<double>(steps.last - steps.first);
    pars.worst = std::max(pars.worst, of_step);
    tokens.push_back(std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0}));
  }
  pars.floor = noise_floor(tokens, loads.num_ranks);
  return pars;
}

StepPars step_pars(const RankLoads& loads, Steps steps) {
  StepPars pars{0, 0, 1};
  for (int layer = 0; layer < loads.num_layers; ++layer) {
    const StepPars of_layer = step_pars(loads, layer, steps);
    pars.mean += of_layer.mean / loads.num_layers;
    pars.floor += of_layer.floor / loads.num_layers;
    pars.worst = std::max(pars.worst, of_layer.worst);
  }
  return pars;
}

}  // namespace trimtab::cli
