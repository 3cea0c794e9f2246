// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab bench --isa` and `trimtab bench experts`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"

namespace trimtab::cli {

struct BenchOptions {
  bool isa = false;
  bool layer = false;
  std::vector<std::string> shapes = {"qwen3-30b"};
  std::vector<std::string> dtypes = {"bf16"};
  std::vector<int64_t> m = {1, 4, 16, 64, 256, 1024};
  std::vector<int64_t> tokens = {1, 4, 16, 64, 256, 1024, 4096};
  std::vector<std::string> routings = {"natural", "skewed"};
  int threads = 1;
  int cold_mb = 1280;
  double seconds = 1.0;
  std::string cost_out;  // file of measured costs; empty: none is wanted
  bool json = false;
};

// Adds --cold-mb.
void add_cold_memory(Command& command, int& megabytes);

// Adds `bench` with its subcommand `experts`. Returns `bench`, for more subcommands.
Command add_bench(Command& program, BenchOptions& options);

}  // namespace trimtab::cli
