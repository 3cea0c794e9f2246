// SPDX-License-Identifier: Apache-2.0
// `trimtab run --chrome-trace`: what every rank's threads did, brought together in one file.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "cli/run/ranks.h"
#include "trimtab/trace.h"

namespace trimtab::cli {

class RunTrace {
 public:
  // file: empty: nothing is recorded, all below does nothing. steps: the most that the run can
  // take; of more events than fit, the newest are kept.
  RunTrace(std::string file, const Ranks& ranks, int64_t steps, int layers);

  // Before the first step. Collective: all times are of one clock where ranks are on one host; else
  // each rank's begin here, which they leave together.
  void begin(Communicator& comm);
  // The buffer of one thread of the rank; null when nothing is recorded. Of each rank, one thread
  // at a time.
  TraceBuffer* add_thread(const Communicator& comm, const std::string& name);
  // When the threads have stopped. Collective.
  void finish(Communicator& comm);
  // After all ranks' finish(): by the process that has the results.
  void write() const;

 private:
  struct OfRank {
    int64_t origin = 0;
    std::deque<TraceBuffer> buffers;  // stay where they are
    std::vector<TraceTrack> tracks;
  };

  std::string file_;
  bool are_processes_;
  int64_t capacity_;
  std::vector<OfRank> ranks_;        // [ranks]
  std::vector<std::string> events_;  // [ranks]
};

}  // namespace trimtab::cli
