// SPDX-License-Identifier: Apache-2.0
// How level a run was: from the rows that the ranks' experts really got, whatever placement was in
// force.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace trimtab::cli {

struct RankLoads {
  int64_t num_steps = 0;
  int num_layers = 0;
  int num_ranks = 0;
  std::vector<int64_t> rows;  // [steps, layers, ranks]

  std::span<const int64_t> at(int64_t step, int layer) const {
    return {rows.data() + (step * num_layers + layer) * num_ranks, static_cast<size_t>(num_ranks)};
  }
};

// counts_of_rank[r]: [steps, layers, slots of rank r], as recorded.
RankLoads rank_loads_of(int64_t num_steps, int num_layers,
                        std::span<const std::span<const int32_t>> counts_of_rank);

// Steps [first, last), at least one.
struct Steps {
  int64_t first = 0, last = 0;
};
// The run in three parts of as many steps to within one; none when there are fewer than three
// steps.
std::vector<Steps> thirds(const RankLoads& loads);

// [ranks]: a layer's rows of several steps.
std::vector<int64_t> sum_of(const RankLoads& loads, int layer, Steps steps);
// PAR of the loads summed over the steps: of a layer, and the mean over the layers.
double summed_par(const RankLoads& loads, int layer, Steps steps);
double summed_par(const RankLoads& loads, Steps steps);

// PARs of single steps of a layer.
struct StepPars {
  double mean = 1;
  double floor = 1;  // the mean that chance alone leaves: see noise_floor()
  double worst = 1;
};
StepPars step_pars(const RankLoads& loads, int layer, Steps steps);
// Mean over the layers; the worst of all.
StepPars step_pars(const RankLoads& loads, Steps steps);

}  // namespace trimtab::cli
