// SPDX-License-Identifier: Apache-2.0
// `trimtab plan`: from recorded loads to a better placement, in an engine's own format.
#pragma once

#include <cstdint>
#include <string>

#include "cli/inputs.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

struct PlanOptions {
  LoadsOptions loads;
  int ranks = 0;  // 0: `current` says
  int slots = 0;  // of each rank; 0: as in `current`
  int nodes = 1;
  int groups = 1;
  std::string current;         // file; empty: default_placement()
  std::string current_format;  // empty: detected
  std::string policy = "trim";
  std::string preset;  // empty: the policy's own
  PlanLimits limits;
  int64_t expert_bytes = 0;
  std::string format = "json";  // of `out`
  std::string out;              // file; empty: nothing is written
  std::string report;           // file of a page; empty: nothing is written
  bool json = false;
};

// Writes the placement, and what it gains and costs to standard output. Throws Error.
void plan(const PlanOptions& options);

}  // namespace trimtab::cli
