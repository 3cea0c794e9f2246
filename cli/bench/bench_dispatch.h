// SPDX-License-Identifier: Apache-2.0
// `trimtab bench dispatch`: bringing tokens to their experts and back, beside copying as many
// bytes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace trimtab::cli {

struct BenchDispatchOptions {
  std::vector<std::string> dispatchers = {"source", "pull",   "fused",     "all_to_all",
                                          "mc2",    "packed", "all_gather"};
  std::vector<int64_t> tokens = {16, 512};
  int ranks = 0;  // not said
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

// Adds the subcommand, which fills `options` (they must outlive the parsing) and then runs.
void add_bench_dispatch(CLI::App& bench, BenchDispatchOptions& options);

}  // namespace trimtab::cli
