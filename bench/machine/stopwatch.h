// SPDX-License-Identifier: Apache-2.0
// Time on one of the system's clocks.
#pragma once

#include <ctime>

#include "trimtab/team.h"

namespace trimtab::bench {

class Stopwatch {
 public:
  explicit Stopwatch(clockid_t clock) : clock_(clock), start_(now()) {}
  // What a team takes. Of one thread: the time that it ran, so that other processes on its core
  // don't count. Of several: the time that passed, for then they wait for each other.
  explicit Stopwatch(const Team& team)
      : Stopwatch(team.size() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {}
  double seconds() const { return now() - start_; }  // from the same thread

 private:
  double now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  clockid_t clock_;
  double start_;
};

}  // namespace trimtab::bench
