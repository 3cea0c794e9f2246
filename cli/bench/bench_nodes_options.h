// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab bench machine` and `trimtab bench sockets`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"

namespace trimtab::cli {

struct BenchNodesOptions {
  int pretend_nodes = 0;  // 0: the machine's own
  int cold_mb = 1280;
  double seconds = 0.5;
  std::string shape = "qwen3-30b";
  std::vector<std::string> dtypes = {"bf16", "w8a8"};
  std::vector<int64_t> tokens = {1, 8, 64};
  bool json = false;
};

// Adds `machine` and `sockets` to `trimtab bench`.
void add_bench_nodes(Command& bench, BenchNodesOptions& options);

}  // namespace trimtab::cli
