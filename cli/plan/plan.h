// SPDX-License-Identifier: Apache-2.0
// `trimtab plan` makes a better placement from recorded loads, in an engine's own format.
#pragma once

#include <vector>

#include "cli/plan/plan_options.h"
#include "cli/plan/planner.h"
#include "cli/plan/traffic.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct PlanResult {
  Plan plan;
  std::vector<int> layer_ids;
  double seconds = 0;
  ServedBy served;
  bool has_wires = false;              // whether traffic between nodes is predicted
  bool has_prices = false;             // whether the topology has prices
  std::optional<StepTraffic> traffic;  // none: the recording has no tokens
};

// The page of --report. current: what the plan starts from.
Report plan_page(const PlanOptions& options, const Recording& loads, const Placement& current,
                 const PlanResult& result);

// Writes the placement, and what it gains and costs to standard output. Throws Error.
void plan(const PlanOptions& options);

}  // namespace trimtab::cli
