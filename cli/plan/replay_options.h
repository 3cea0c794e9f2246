// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab replay`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plan/planner_options.h"

namespace trimtab::cli {

struct ReplayOptions : PlannerOptions {
  LoadsOptions loads;
  int64_t window = 0;  // steps; 0: default_window()
  std::vector<std::string> policies;
  std::string report;  // file of a page; empty: nothing is written
  bool json = false;
};

void add_replay(Command& program, ReplayOptions& options);

}  // namespace trimtab::cli
