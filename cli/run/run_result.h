// SPDX-License-Identifier: Apache-2.0
// What a run gives, for the reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/eplb_result.h"

namespace trimtab::cli {

struct Output {
  std::string prompt;  // UTF-8: the text, or the token ids as they were given
  int64_t prompt_tokens = 0;
  std::vector<int32_t> token_ids;  // new ones
  std::string text;                // of token_ids; empty without a byte-level vocabulary
  std::string finish;              // why it ended: "end_token", "steps" or "context"
};

struct RunResult {
  std::string model;  // as it was named
  std::string model_type;
  int ranks = 0;
  std::string dispatcher;
  std::string dtype;
  std::string experts;  // the format of their weights
  int top_k = 0;
  int num_experts = 0;
  bool has_text = true;
  int64_t steps = 0;                            // forward passes
  int64_t prompt_tokens = 0;                    // of all prompts
  int64_t tokens = 0;                           // new ones, of all prompts
  double seconds = 0.0;                         // from the first prompt token to the last new one
  std::vector<int> moe_layers;                  // which of the model's layers
  std::vector<double> par_per_layer;            // [MoE layers]
  std::vector<std::vector<int64_t>> rank_load;  // [MoE layers][ranks] rows that the experts got
  std::optional<EplbResult> eplb;               // none: off
  std::vector<Output> outputs;
};

std::string text_report(const RunResult& result);
std::string json_report(const RunResult& result);

}  // namespace trimtab::cli
