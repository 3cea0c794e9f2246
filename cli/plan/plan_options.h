// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab plan`.
#pragma once

#include <string>

#include "cli/plan/planner_options.h"

namespace trimtab::cli {

struct PlanOptions : PlannerOptions {
  LoadsOptions loads;
  std::string policy = "trim";
  std::string format = "json";  // of `out`
  std::string out;              // file; empty: nothing is written
  std::string report;           // file of a page; empty: nothing is written
  bool curve = false;           // also PAR against moves
  bool json = false;
};

void add_plan(Command& program, PlanOptions& options);

}  // namespace trimtab::cli
