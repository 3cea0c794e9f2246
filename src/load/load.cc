// SPDX-License-Identifier: Apache-2.0
#include "trimtab/load.h"

#include <algorithm>
#include <functional>

namespace trimtab {

std::vector<int64_t> sum_of_steps(const Load& load, int layer, StepRange steps) {
  std::vector<int64_t> sum(cells(load.num_experts), 0);
  for (int64_t step = steps.first; step < steps.last; ++step)
    std::ranges::transform(sum, load.at(step, layer), sum.begin(), std::plus());
  return sum;
}

Load steps_of(const Load& load, StepRange steps) {
  const int64_t of_step = int64_t{load.num_layers} * load.num_experts;
  const auto first = load.counts.begin() + steps.first * of_step;
  return {steps.size(), load.num_layers, load.num_experts, {first, first + steps.size() * of_step}};
}

}  // namespace trimtab
