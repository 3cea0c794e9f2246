// SPDX-License-Identifier: Apache-2.0
// `trimtab plan` and `replay` share these functions, which turn their options into a problem for a
// policy.
#pragma once

#include "cli/plan/inputs.h"
#include "cli/plan/planner_options.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

// What the first plan starts from, its layers numbered as the engine does. Throws Error.
PlacementFile starting_placement(const PlannerOptions& options, const Recording& loads);

// load, current, served and tokens must outlive the problem. tokens: those of the recording, or
// null. Throws InvalidArgument.
Problem problem_of(const PlannerOptions& options, const Load& load, const Placement& current,
                   const ServedBy& served, const TokenSample* tokens);

}  // namespace trimtab::cli
