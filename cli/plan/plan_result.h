// SPDX-License-Identifier: Apache-2.0
// What planning gives, for the reports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/plan/plan.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct PlanResult {
  Plan plan;
  std::vector<int> layer_ids;
  double seconds = 0;
};

inline double moves_per_layer(const Plan& plan) {
  return static_cast<double>(plan.moves.size()) / static_cast<double>(plan.layers.size());
}

// Most expert weights that one rank gets in one layer.
inline int64_t receive_peak(const Plan& plan) {
  return *std::max_element(plan.receive_peak.begin(), plan.receive_peak.end());
}

// The page of --report. current: what the plan starts from.
Report page_report(const PlanOptions& options, const Recording& loads, const Placement& current,
                   const PlanResult& result);

}  // namespace trimtab::cli
