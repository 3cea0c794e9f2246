// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab bench model`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"
#include "cli/run/model_options.h"

namespace trimtab::cli {

// What is measured where nothing is said.
constexpr int64_t kContexts[] = {256}, kPrompts[] = {512, 2048};

struct BenchModelOptions : ModelOptions {
  std::vector<int64_t> batches = {1, 4, 16, 64};
  std::vector<int64_t> contexts, prefill;  // empty: kContexts and kPrompts, where they fit
  int cold_mb = 1280;
  double seconds = 1.0;
  int rounds = 5;
  std::string perplexity;  // file of text or token ids; empty: rates are measured
  int64_t window = 0;      // tokens of a window of it; 0: as the model says
  bool json = false;
};

// Adds `model` to `trimtab bench`.
void add_bench_model(Command& bench, BenchModelOptions& options);

}  // namespace trimtab::cli
