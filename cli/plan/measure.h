// SPDX-License-Identifier: Apache-2.0
// How level ranks are under recorded loads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"

namespace trimtab::cli {

struct LayerLevel {
  double par = 1;  // of the loads summed over all steps
  double par_step_mean =
      1;  // mean over the steps of the step's PAR; a step without tokens counts 1
  double par_step_worst = 1;  // of the step worst_step
  int64_t worst_step = 0;
  std::vector<double> rank_load;  // [ranks] tokens of all steps
};

// Every expert's tokens are shared equally among its copies. The sizes must fit: see
// read_placement_for().
LayerLevel measure(const Placement& placement, const Load& load, int layer);

// Every step's tokens are shared out by the rule, as whole tokens of one batch that come from all
// ranks equally. node_of_rank: [ranks], or empty: all on one. Throws InvalidArgument for a step of
// more tokens than a batch can have.
LayerLevel measure_split(const Placement& placement, const Load& load, int layer, SplitRule rule,
                         std::span<const int32_t> node_of_rank);

struct Drift {
  double mean = 0, worst = 0;
};
// How much of the tokens went to other experts than in the window before: half the sum over the
// experts of the changes of their share, 0 to 1; over successive windows of `window` steps (fewer
// at the end are left out). At least two windows must fit.
Drift drift(const Load& load, int layer, int64_t window);

}  // namespace trimtab::cli
