// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab run`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options/command.h"
#include "cli/run/model_options.h"
#include "cli/run/run_layout.h"
#include "trimtab/generate.h"

namespace trimtab::cli {

// Files are named by their path; an empty name means that the file is not wanted.
struct RunOptions : ModelOptions {
  std::string prompts;    // file; empty: MODEL/prompts.txt
  std::string token_ids;  // a file, or the ids themselves; empty: none
  int steps = 64;
  LayoutOptions layout;
  bool progress_thread = false;
  bool force_balance = false;
  bool overlap = false;
  int step_tokens = 256;  // DecoderOptions::max_tokens
  uint64_t seed = 0;
  Sampling sampling;
  bool model_sampling = false;     // what is not said of `sampling` is as the model says
  std::vector<std::string> stops;  // texts
  std::string stop_ids;            // token ids
  bool stream = false;
  int max_sequences = 0;       // of a rank, in a step together; 0: as many as fit
  std::string eplb = "off";    // see parse_eplb_mode()
  std::string eplb_config;     // file of a BalancerConfig; empty: the preset "short"
  std::string split;           // a SplitRule by name; empty: as the BalancerConfig says
  std::string cost;            // "rows", "measure" or a file of costs; empty: none
  int redundant_experts = -1;  // over all ranks; -1: not said
  std::string placement_out;
  std::string trace_out;
  std::string routes_out, routes_in;
  std::string chrome_trace;
  std::string report;
  std::string metrics;
  bool json = false;
  bool dry_run = false;
};

// Adds the command, which fills `options` and then runs.
void add_run(Command& program, RunOptions& options);

}  // namespace trimtab::cli
