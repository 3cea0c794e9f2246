// SPDX-License-Identifier: Apache-2.0
// `trimtab run`: a model generates text on several ranks.
#pragma once

#include <cstdint>
#include <string>

#include "cli/run/eplb_result.h"

namespace trimtab::cli {

struct RunOptions {
  std::string model;
  int ranks = 0;          // 0: not said; see Ranks
  std::string prompts;    // file; empty: MODEL/prompts.txt
  std::string token_ids;  // file or inline; empty: none
  int steps = 64;
  std::string dispatcher = "auto";
  std::string dtype = "f32";
  std::string experts;  // a WeightFormat by name; empty: as the checkpoint or dtype
  int threads_per_rank = 1;
  int timeout = 60;  // seconds
  uint64_t seed = 0;
  float temperature = 0.0F;
  std::string trace_out;
  std::string chrome_trace;  // file; empty: none, as the next
  std::string report;
  EplbOptions eplb;
  std::string placement_out;  // file for the map at the end; empty: none
  int max_sequences = 0;      // of a rank, in a step together; 0: as many as fit
  std::string metrics;        // file for Prometheus; empty: none
  bool json = false;
};

// Writes the results to standard output and progress to standard error. Throws Error.
void run(const RunOptions& options);

}  // namespace trimtab::cli
