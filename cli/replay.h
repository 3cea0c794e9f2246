// SPDX-License-Identifier: Apache-2.0
// `trimtab replay`: what policies would have gained and moved over a recording, replanning window by window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/inputs.h"

namespace trimtab::cli {

struct ReplayOptions {
  LoadsOptions loads;
  int ranks = 0;
  int slots = 0;       // of each rank
  int64_t window = 0;  // steps
  std::vector<std::string> policies;
  std::string report;  // file of a page; empty: nothing is written
  bool json = false;
};

// Writes to standard output. Throws Error.
void replay(const ReplayOptions& options);

}  // namespace trimtab::cli
