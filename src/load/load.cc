// SPDX-License-Identifier: Apache-2.0
#include "trimtab/load.h"

#include <algorithm>

#include "base/cat.h"
#include "load/rank_loads.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

void check_experts(const Placement& placement, size_t num_experts) {
  if (num_experts != static_cast<size_t>(placement.num_experts())) {
    throw InvalidArgument(
        cat("load: ", num_experts, " experts, the placement has ", placement.num_experts()));
  }
}

}  // namespace

double par(std::span<const int64_t> rank_load) {
  int64_t sum = 0;
  int64_t peak = 0;
  for (const int64_t load : rank_load) {
    sum += load;
    peak = std::max(peak, load);
  }
  if (sum == 0) return 1.0;
  return static_cast<double>(peak) * static_cast<double>(rank_load.size()) /
         static_cast<double>(sum);
}

std::vector<int64_t> rank_load(const Placement& placement, int layer,
                               std::span<const int64_t> expert_load) {
  check_experts(placement, expert_load.size());
  const std::span<const int32_t> logical = placement.logical(layer);
  if (placement.num_slots() != placement.num_experts()) {
    throw InvalidArgument(cat("rank load: layer ", layer, " has ", placement.num_slots(),
                              " slots for ", placement.num_experts(),
                              " experts; needs a placement without replicas"));
  }
  std::vector<int64_t> loads(placement.num_ranks());
  for (int r = 0; r < placement.num_ranks(); ++r) {
    for (int s = placement.first_slot(r); s < placement.first_slot(r + 1); ++s) {
      loads[r] += expert_load[static_cast<size_t>(logical[s])];
    }
  }
  return loads;
}

std::vector<double> par_per_layer(const Placement& placement, const Load& load) {
  check_experts(placement, load.num_experts);
  const size_t wanted = cells(load.num_steps, load.num_layers, load.num_experts);
  if (load.num_layers != placement.num_layers() || load.counts.size() != wanted) {
    throw InvalidArgument(cat("load: ", load.counts.size(), " counts for [", load.num_steps, ", ",
                              load.num_layers, ", ", load.num_experts, "], the placement has ",
                              placement.num_layers(), " layers"));
  }
  std::vector<double> pars;
  for (int l = 0; l < load.num_layers; ++l) {
    pars.push_back(par(rank_load(placement, l, sum_of_steps(load, l, 0, load.num_steps))));
  }
  return pars;
}

}  // namespace trimtab
