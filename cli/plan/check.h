// SPDX-License-Identifier: Apache-2.0
// `trimtab check`: is a placement valid, and how level would the ranks be under given loads?
#pragma once

#include <string>

#include "cli/plan/inputs.h"

namespace trimtab::cli {

struct CheckOptions {
  std::string placement;
  std::string format;  // empty: detected
  int ranks = 0;       // 0: the file says
  LoadsOptions loads;  // no files: none
  std::string report;  // file of a page; empty: nothing is written
  bool json = false;
};

// Writes to standard output. Throws Error, for a placement that is not valid too.
void check(const CheckOptions& options);

}  // namespace trimtab::cli
