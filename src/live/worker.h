// SPDX-License-Identifier: Apache-2.0
// A thread in the background that does one job at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "trimtab/trace.h"

namespace trimtab {

enum class JobStatus : uint8_t {
  kIdle,  // there has been no job yet
  kRunning,
  kDone,
  kFailed,  // the job threw
  kBroken   // the job threw a CommError: the group is lost
};

class Worker {
 public:
  // A job that may hang must own what it uses, since it uses it for ever.
  using Job = std::function<void()>;

  // trace: gets a slice for each job that has a name; may be null. A job that is left behind does
  // not write to it.
  explicit Worker(TraceBuffer* trace = nullptr);
  // Waits for the job, but not longer than the patience; a job that takes longer is left behind
  // with its thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // May be called only when no job runs. What the job writes may be read once status() is not
  // kRunning. name: a literal, for traces.
  void start(Job job, const char* name = nullptr);
  JobStatus status() const;
  using Clock = std::chrono::steady_clock;
  // Returns when no job runs, or at the given time.
  void wait(Clock::time_point until = Clock::time_point::max()) const;
  // What the exception of the latest job said; empty if it threw none.
  std::string failure() const;
  // Throws the exception of the latest job, if it threw one.
  void rethrow() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::chrono::milliseconds patience_ = std::chrono::hours(1);
  std::thread thread_;
};

}  // namespace trimtab
