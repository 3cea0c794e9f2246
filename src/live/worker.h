// SPDX-License-Identifier: Apache-2.0
// One thread in the background that does one job at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace trimtab {

enum class JobStatus : uint8_t {
  kIdle,  // there was none yet
  kRunning,
  kDone,
  kFailed,  // it threw
  kBroken   // it threw a CommError: the group is lost
};

class Worker {
 public:
  // A job that hangs keeps what it refers to in use for ever; it must own that.
  using Job = std::function<void()>;

  Worker();
  // Waits for the job, but no longer than patience(); a job that takes longer is left behind with
  // its thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void set_patience(std::chrono::milliseconds patience) { patience_ = patience; }
  // Only when no job runs. What the job writes may be read once status() is not kRunning.
  void start(Job job);
  JobStatus status() const;
  using Clock = std::chrono::steady_clock;
  // Until no job runs, or until the given time.
  void wait(Clock::time_point until = Clock::time_point::max()) const;
  // kFailed: what the exception said. kBroken: throws it.
  std::string failure() const;
  void rethrow() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::chrono::milliseconds patience_ = std::chrono::hours(1);
  std::thread thread_;
};

}  // namespace trimtab
