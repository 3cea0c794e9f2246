// SPDX-License-Identifier: Apache-2.0
// `trimtab check`: is a placement valid, and how level would the ranks be under given loads?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plan/check_options.h"
#include "cli/plan/inputs.h"
#include "cli/plan/traffic.h"
#include "trimtab/par.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct CheckResult {
  std::string format;
  std::vector<int> layer_ids;
  std::vector<int> slots_per_rank;
  std::vector<int64_t> duplicates;  // [layers]
  std::vector<Levelness> levels;    // [layers]; empty without loads
  ServedBy served;
  // [layers] PAR of a step in time, and the seconds of its busiest rank, mean over the steps; empty
  // without costs.
  std::vector<double> par_time, step_seconds;
  Topology topology;
  std::optional<StepTraffic> traffic;  // none: there are no loads, or they have no tokens
};

// loads: what the ranks are measured with; null: they are not.
CheckResult check_placement(const CheckOptions& options, const PlacementFile& file,
                            Recording* loads);
// The page of --report.
Report check_page(const CheckOptions& options, const PlacementFile& file, const Recording* loads,
                  const CheckResult& result);

// Writes to standard output. Throws Error, also for a placement that is not valid.
void check(const CheckOptions& options);

}  // namespace trimtab::cli
