// SPDX-License-Identifier: Apache-2.0
// What `trimtab run --eplb` is asked for, and what it came to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trimtab::cli {

struct EplbOptions {
  std::string mode = "off";  // off, static:FILE, record:FILE, dynamic[:FILE], screen[:FILE]
  std::string config;        // file of a BalancerConfig; empty: the preset "short"
  int redundant_experts =
      -1;  // over all ranks; below 0: one a rank where something can come of it, else none
};

struct EplbResult {
  std::string mode;
  int64_t replans = 0, layers_switched = 0, moves = 0, moved_bytes = 0, rolled_back = 0;
  double stall_seconds = 0, plan_seconds = 0;
  // [3] of the rank loads of those steps together, mean over the layers; empty for a run of less
  // than 3 steps
  std::vector<double> par_by_third;
  double predicted_gain = 0, realised_gain = 0;
  std::string verdict;  // of screening; empty: none
};

}  // namespace trimtab::cli
