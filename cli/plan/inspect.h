// SPDX-License-Identifier: Apache-2.0
// `trimtab inspect`: what a recording holds, how uneven the ranks are under it, and how much of
// that is chance.
#pragma once

#include <cstdint>
#include <string>

#include "cli/plan/inputs.h"

namespace trimtab::cli {

struct InspectOptions {
  LoadsOptions loads;
  int ranks = 0;               // 0: `current` says; kDefaultRanks without it
  std::string current;         // file of a placement; empty: experts in order
  std::string current_format;  // empty: detected
  int64_t window = 0;          // steps; 0: a quarter of the recording
  std::string report;          // file of a page; empty: nothing is written
  bool json = false;

  static constexpr int kDefaultRanks = 8;
};

// Writes to standard output. Throws Error.
void inspect(const InspectOptions& options);

}  // namespace trimtab::cli
