// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "cli/plan/plan.h"
#include "cli/plan/report_facts.h"

namespace trimtab::cli {

Report plan_page(const PlanOptions& options, const Recording& loads, const Placement& current,
                 const PlanResult& result) {
  Report report = plan_report({loads.load, current, result.plan, result.layer_ids, loads.step_ids});
  set_title(report, "plan", options.loads.files[0]);
  add_loads_facts(report, options.loads, loads);
  add_sizes(report, result.layer_ids, current);
  add_planner_facts(report, options, current, "Before");
  const std::string& preset = options.policy_options.preset;
  report.facts.push_back(
      {"Policy", preset.empty() ? options.policy : fmt::format("{}, {}", options.policy, preset)});
  if (result.traffic) add_traffic(*result.traffic, report);
  return report;
}

}  // namespace trimtab::cli
