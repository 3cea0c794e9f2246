// SPDX-License-Identifier: Apache-2.0
// The options that `trimtab plan` and `replay` share: the ranks and slots to plan for, what a plan
// may cost, and how to plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan/planning_options.h"
#include "cli/plan/serving_options.h"
#include "cli/plan/wire_options.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

struct PlannerOptions {
  int ranks = 0;  // 0: `current` says
  int slots = 0;  // of each rank; 0: as in `current`
  WireOptions wires;
  std::string current;         // file; empty: default_placement()
  std::string current_format;  // empty: detected
  PlanLimits limits;
  int64_t expert_bytes = 0;
  ServingOptions serving;  // what plans are made for
  PolicyOptions policy_options;
  double wire_slack = Problem::kWireSlack;  // what less traffic between nodes may cost in PAR
};

void add_planner(Command& command, PlannerOptions& options);

// Throws UsageError for sizes that neither the options nor --current say, and for options that none
// of these policies has.
void check_planner(const PlannerOptions& options, const std::vector<std::string>& policies);

}  // namespace trimtab::cli
