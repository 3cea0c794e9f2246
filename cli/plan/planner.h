// SPDX-License-Identifier: Apache-2.0
// What `trimtab plan` and `replay` share: the ranks and slots to plan for, what a plan may cost,
// and how to plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan/inputs.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

struct PlannerOptions {
  int ranks = 0;  // 0: `current` says
  int slots = 0;  // of each rank; 0: as in `current`
  int nodes = 1;
  int groups = 1;
  std::string current;         // file; empty: default_placement()
  std::string current_format;  // empty: detected
  PlanLimits limits;
  int64_t expert_bytes = 0;
  // Of trim alone.
  std::string preset;                   // empty: its own
  std::optional<double> time_budget_s;  // of a plan
  std::optional<double> move_price;
  bool keep_slots = true;  // of deepseek alone
};

// Throws InvalidArgument for unknown names, and for options of a policy that is not among them.
std::vector<std::unique_ptr<Policy>> make_policies(const std::vector<std::string>& names,
                                                   const PlannerOptions& options);

// What the first plan starts from, its layers numbered as the engine does. Throws Error.
PlacementFile starting_placement(const PlannerOptions& options, const Recording& loads);

// load and current must outlive the problem. Throws InvalidArgument.
Problem problem_of(const PlannerOptions& options, const Load& load, const Placement& current);

}  // namespace trimtab::cli
