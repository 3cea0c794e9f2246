// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab bench dispatch`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"

namespace trimtab::cli {

constexpr int kBenchRanks = 4;  // where neither --ranks nor mpiexec says how many

struct BenchDispatchOptions {
  std::vector<std::string> dispatchers = {"source", "pull",   "fused",     "all_to_all",
                                          "mc2",    "packed", "all_gather"};
  std::vector<int64_t> tokens = {16, 512};
  int ranks = 0;  // 0: not said
  int hosts = 1;
  int hidden = 2048;
  int top_k = 8;
  int num_experts = 64;
  std::string dtype = "bf16";
  int intermediate = 0;  // 0: no experts
  bool overlap = false;
  bool progress_thread = false;
  double seconds = 1.0;
  bool json = false;
};

// Adds `dispatch` to `trimtab bench`.
void add_bench_dispatch(Command& bench, BenchDispatchOptions& options);

}  // namespace trimtab::cli
