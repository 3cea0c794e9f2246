// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab bench split`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"

namespace trimtab::cli {

struct BenchSplitOptions {
  std::string loads;  // a recording; empty: picks at random
  std::string cost;   // a file of measured costs; empty: weights cost all, rows nothing
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};  // of each rank
  int ranks = 64;
  int slots = 5;  // of each rank
  int experts = 256;
  int top_k = 8;
  std::string routing = "natural";
  int steps = 64;
  bool json = false;
};

// Adds `split` to `trimtab bench`.
void add_bench_split(Command& bench, BenchSplitOptions& options);

}  // namespace trimtab::cli
