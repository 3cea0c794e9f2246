// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab check`.
#pragma once

#include <string>

#include "cli/plan/planning_options.h"
#include "cli/plan/serving_options.h"
#include "cli/plan/wire_options.h"

namespace trimtab::cli {

struct CheckOptions {
  std::string placement;
  std::string format;  // empty: detected
  int ranks = 0;       // 0: the file says
  LoadsOptions loads;  // no files: none
  ServingOptions serving;
  WireOptions wires;
  std::string report;  // file of a page; empty: nothing is written
  bool json = false;
};

void add_check(Command& program, CheckOptions& options);

}  // namespace trimtab::cli
