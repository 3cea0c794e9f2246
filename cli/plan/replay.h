// SPDX-License-Identifier: Apache-2.0
// `trimtab replay`: what policies would have gained and moved over a recording, replanning window
// by window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plan/planner.h"

namespace trimtab::cli {

struct ReplayOptions : PlannerOptions {
  LoadsOptions loads;
  int64_t window = 0;  // steps
  std::vector<std::string> policies;
  std::string report;  // file of a page; empty: nothing is written
  std::string split =
      "equal";  // or the name of a SplitRule: how a step's tokens are shared out over replicas
  bool json = false;
};

// Writes to standard output. Throws Error.
void replay(const ReplayOptions& options);

}  // namespace trimtab::cli
