// SPDX-License-Identifier: Apache-2.0
// What the pages of all commands say about their inputs.
#pragma once

#include <string>
#include <vector>

#include "cli/planner.h"
#include "trimtab/report.h"

namespace trimtab::cli {

// A page about these loads, on ranks as in `placement`, with its title, facts, layers and expert loads filled in.
// command: "plan", ...
Report report_on(const std::string& command, const LoadsOptions& options, const Recording& loads,
                 const Placement& placement);

// Adds the nodes, and what `current`, the placement to start from, is. name: what the page calls it.
void add_planner_facts(Report& report, const PlannerOptions& options, const Placement& current,
                       const std::string& name);

}  // namespace trimtab::cli
