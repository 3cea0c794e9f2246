// SPDX-License-Identifier: Apache-2.0
// `trimtab plan`: from recorded loads to a better placement, in an engine's own format.
#pragma once

#include <string>

#include "cli/plan/planner.h"

namespace trimtab::cli {

struct PlanOptions : PlannerOptions {
  LoadsOptions loads;
  std::string policy = "trim";
  std::string format = "json";  // of `out`
  std::string out;              // file; empty: nothing is written
  std::string report;           // file of a page; empty: nothing is written
  bool json = false;
};

// Writes the placement, and what it gains and costs to standard output. Throws Error.
void plan(const PlanOptions& options);

}  // namespace trimtab::cli
