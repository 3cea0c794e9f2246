// SPDX-License-Identifier: Apache-2.0
// `trimtab bench model` times a whole model, or measures how well it foretells a text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/model/model_bench.h"
#include "cli/bench/bench_model_options.h"
#include "trimtab/perplexity.h"

namespace trimtab::cli {

struct BenchModelResult {
  std::string model;  // as it was named
  std::string model_type;
  int ranks = 0, threads_per_rank = 0;
  std::string dispatcher, dtype, linear, experts, kv;
  size_t kv_bytes_per_token = 0;              // of a sequence, over all layers
  size_t weight_bytes = 0, expert_bytes = 0;  // of the process
  size_t peak_bytes = 0;  // most memory that the process had until the weights were loaded
  double load_seconds = 0;
  int moe_layers = 0, num_experts = 0, top_k = 0;
  double stream = 0;  // bytes per second of all ranks
  std::vector<bench::ModelRow> prefill, decode;
  std::optional<Perplexity> perplexity;
};

std::string bench_model_text(const BenchModelResult& result);
std::string bench_model_json(const BenchModelResult& result);

// Writes to standard output and progress to standard error. Throws Error.
void bench_model(const BenchModelOptions& options);

}  // namespace trimtab::cli
