// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab inspect`.
#pragma once

#include <cstdint>
#include <string>

#include "cli/plan/planning_options.h"
#include "cli/plan/serving_options.h"
#include "cli/plan/wire_options.h"

namespace trimtab::cli {

struct InspectOptions {
  LoadsOptions loads;
  int ranks = 0;               // 0: `current` says; kDefaultRanks without it
  std::string current;         // file of a placement; empty: experts in order
  std::string current_format;  // empty: detected
  ServingOptions serving;
  WireOptions wires;
  int64_t window = 0;  // steps; 0: a quarter of the recording
  std::string report;  // file of a page; empty: nothing is written
  bool json = false;

  static constexpr int kDefaultRanks = 8;
};

void add_inspect(Command& program, InspectOptions& options);

}  // namespace trimtab::cli
