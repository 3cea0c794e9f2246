// SPDX-License-Identifier: Apache-2.0
// How long it takes to bring tokens to their experts and the results back, beside copying as many
// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/experts/paired.h"
#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"

namespace trimtab::bench {

struct DispatchCase {
  std::string dispatcher;  // a name of make_dispatcher(), or `source`: source_pipeline.h
  int64_t tokens;          // of each rank
  int hidden;
  int top_k;
  int num_experts;
  DType dtype;
};

// Milliseconds; of all ranks the mean, over the rounds the median and the quartiles.
struct DispatchRow {
  DispatchCase subject;
  // From beginning to end, the waits for other ranks included.
  Spread ms_dispatch;
  Spread ms_combine;
  Spread ms_memcpy;  // every rank copies as many bytes as its experts' rows and its picks' results
                     // have
  // What the ranks' own threads ran: ranks that share a core don't count each other.
  Spread cpu_ms_dispatch;
  Spread cpu_ms_combine;
  Spread cpu_ms_memcpy;
  Spread pct_of_memcpy;  // cpu_ms_memcpy / (cpu_ms_dispatch + cpu_ms_combine), round by round
  int rounds;
};

// Collective; every rank gets the same row. Experts return what they get, unweighted. Verifies the
// result first: throws Error when it is wrong.
DispatchRow bench_dispatch(Communicator& comm, const DispatchCase& subject, const Effort& effort);

}  // namespace trimtab::bench
