// SPDX-License-Identifier: Apache-2.0
// How long whole MoE layers take over each of several dispatchers, and how much of the transfers
// two microbatches hide.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/experts/paired.h"
#include "trimtab/communicator.h"

namespace trimtab::bench {

struct LayerCase {
  std::vector<std::string> dispatchers;  // names of make_dispatcher()
  int64_t tokens;                        // of each rank
  int hidden;
  int top_k;
  int num_experts;
  int64_t intermediate;
  bool overlap;  // also in two microbatches
};

// Milliseconds a layer; of all ranks the mean, over the rounds the median and the quartiles. In
// each round every dispatcher has its turn.
struct WholeLayerRow {
  std::string dispatcher;
  Spread ms_layer;      // from beginning to end
  Spread cpu_ms_layer;  // what the ranks' own threads ran
  Spread pct_of_first;  // cpu_ms_layer, of that of the first dispatcher in the same round
  // With overlap:
  Spread ms_transfer;    // the same layer with experts that do nothing
  Spread ms_overlapped;  // in two microbatches
  Spread pct_hidden;     // what that saves, of the shorter of transfer and the rest
  int rounds = 0;
};

// Collective; every rank gets the same rows. Experts in bf16, one thread a rank. Results are
// compared first: throws Error when a dispatcher's is not that of the first one.
std::vector<WholeLayerRow> bench_whole_layer(Communicator& comm, const LayerCase& subject,
                                             const Effort& effort);

}  // namespace trimtab::bench
