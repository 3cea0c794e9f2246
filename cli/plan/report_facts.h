// SPDX-License-Identifier: Apache-2.0
// Adds to a page the facts about a command's inputs, which all pages show alike.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/planner.h"
#include "trimtab/report.h"

namespace trimtab::cli {

// Says which command made the page ("plan", ...), and of which file.
void set_title(Report& report, const std::string& command, const std::string& file);

// Adds where the loads are from, how many steps they have, and the load of each expert.
void add_loads_facts(Report& report, const LoadsOptions& options, const Recording& loads);

// Adds the layers, their numbers and experts, and the ranks.
void add_sizes(Report& report, const std::vector<int>& layer_ids, const Placement& placement);

// A page about these loads, on ranks as in `placement`, with all of the above.
Report report_on(const std::string& command, const LoadsOptions& options, const Recording& loads,
                 const Placement& placement);

// Adds the nodes, and what `current`, the placement to start from, is. name: what the page calls
// it.
void add_planner_facts(Report& report, const PlannerOptions& options, const Placement& current,
                       const std::string& name);

}  // namespace trimtab::cli
