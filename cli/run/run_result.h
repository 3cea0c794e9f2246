// SPDX-License-Identifier: Apache-2.0
// The result of a run, and the three forms in which it is shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/run_memory.h"
#include "cli/run/wire.h"
#include "trimtab/generate.h"
#include "trimtab/layout.h"
#include "trimtab/metrics.h"
#include "trimtab/placement.h"
#include "trimtab/rank_loads.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct Output {
  std::string prompt;  // UTF-8: the text, or the token ids as they were given
  int64_t prompt_tokens = 0;
  std::vector<int32_t> token_ids;  // new ones
  std::string text;    // of token_ids, without a stop; empty without a byte-level vocabulary
  std::string finish;  // why it ended: "end_token", "stop", "steps", "context", "error" or
                       // "interrupted"
};

struct RunResult {
  // The model and how it ran.
  std::string model;  // as it was named
  std::string model_type;
  int ranks = 0, threads_per_rank = 0;        // threads: of rank 0
  std::optional<ParallelLayout> layout = {};  // none: data-parallel ranks with whole experts
  std::string dispatcher;
  Wire wire;
  std::string dtype;
  std::string linear;             // the format of attention, dense layers and the output head
  std::string experts;            // the format of their weights
  std::string kv;                 // the KvFormat of keys and values
  size_t kv_bytes_per_token = 0;  // of a sequence, over all layers
  bool force_balance = false, progress_thread = false, overlap = false;
  int top_k = 0;
  int num_experts = 0;
  bool has_text = true;
  RunMemory memory;
  Sampling sampling;
  std::vector<int> moe_layers;  // which of the model's layers; the tables below count these alone
  // The outputs.
  std::vector<Output> outputs;
  GenerateProgress progress;     // at the end
  int64_t steps = 0;             // forward passes
  int64_t overlapped_steps = 0;  // those of rank 0 that were two microbatches
  int64_t prompt_tokens = 0;     // of all prompts
  int64_t tokens = 0;            // new ones, of all prompts
  double decode_bytes = 0;       // read in decode steps: weights, keys, values; 0: not counted
  double seconds = 0.0;          // from the first prompt token to the last new one
  // Figures of how level the ranks were. Rows are those that the experts of a rank got. All empty
  // with force_balance.
  std::vector<double> par_per_layer;            // [layers]
  std::vector<double> par_time_per_layer;       // [layers] in time; empty without --cost
  std::vector<std::vector<int64_t>> rank_load;  // [layers][ranks] rows
  std::vector<int64_t> expert_load;             // [layers, experts] rows
  RankLoads loads;                              // rows of every step
  // The placements, and the balancing between them.
  Placement start, end;
  std::string split = {};  // the rule that shared tokens out over replicas; empty: none did
  std::string eplb_mode = "off";
  // Of --eplb record:FILE. Sampled tokens: 0 where the file's format has no place for them.
  std::string record_file;
  int64_t tokens_sampled = 0, tokens_routed = 0;
  bool sources_recorded = false;          // whether the rank that a token comes from is known
  std::vector<double> par_by_third;       // [3]; empty: off, or less than 3 steps
  std::vector<double> par_time_by_third;  // the same of steps in time; empty without --cost
  std::optional<BalanceMetrics> metrics;  // none: the run did not balance
  std::vector<BalanceEvent> events;       // of rank 0, in the order of their steps
  int64_t layers_switched = 0;
  std::string verdict;  // of screening; empty: none
};

// What is kept in another format than dtype, with a comma before each; empty: nothing.
std::string quantised_parts(const RunResult& result);
// The text report, and what stands in it before the outputs and behind them.
std::string text_report(const RunResult& result);
std::string report_title(const RunResult& result);
std::string report_figures(const RunResult& result);
std::string json_report(const RunResult& result);
// The two forms of a dry run.
std::string dry_run_text(const RunResult& result);
std::string dry_run_json(const RunResult& result);
// The page of --report.
Report run_page(const RunResult& result);

}  // namespace trimtab::cli
