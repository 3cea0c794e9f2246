// SPDX-License-Identifier: Apache-2.0
#include "live/worker.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "trimtab/error.h"

namespace trimtab {

struct Worker::State {
  std::mutex mutex;
  std::condition_variable changed;
  Job job;
  const char* name = nullptr;
  TraceBuffer* trace = nullptr;  // null once the Worker is gone
  bool stop = false;
  bool ended = false;
  // The worker's thread writes it, after what the job made; it is read without the mutex at every
  // step.
  std::atomic<JobStatus> status{JobStatus::kIdle};
  std::exception_ptr error;
};

Worker::Worker(TraceBuffer* trace) : state_(std::make_shared<State>()) {
  state_->trace = trace;
  thread_ = std::thread([state = state_] { run(state); });
}

Worker::~Worker() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, patience_, [this] { return state_->ended; });
  state_->trace = nullptr;
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

void Worker::run(const std::shared_ptr<State>& state) {
  for (;;) {
    Job job;
    const char* name = nullptr;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stop || state->job; });
      if (!state->job) {
        state->ended = true;
        state->changed.notify_all();
        return;
      }
      job = std::exchange(state->job, nullptr);
      name = state->name;
    }
    const int64_t begin = TraceBuffer::now();
    JobStatus status = JobStatus::kDone;
    try {
      job();
    } catch (const CommError&) {
      state->error = std::current_exception();
      status = JobStatus::kBroken;
    } catch (...) {
      state->error = std::current_exception();
      status = JobStatus::kFailed;
    }
    job = nullptr;
    const std::lock_guard lock(state->mutex);
    if (state->trace != nullptr && name != nullptr) state->trace->slice(name, begin);
    state->status.store(status, std::memory_order_release);
    state->changed.notify_all();
  }
}

void Worker::start(Job job, const char* name) {
  const std::lock_guard lock(state_->mutex);
  state_->name = name;
  state_->error = nullptr;
  state_->status.store(JobStatus::kRunning, std::memory_order_relaxed);
  state_->job = std::move(job);
  state_->changed.notify_all();
}

JobStatus Worker::status() const {
  return state_->status.load(std::memory_order_acquire);
}

void Worker::wait(Clock::time_point until) const {
  const auto through = [this] { return status() != JobStatus::kRunning; };
  std::unique_lock lock(state_->mutex);
  // wait_until() is not used for a time that never comes: some systems convert it to another clock,
  // where it overflows.
  if (until == Clock::time_point::max()) {
    state_->changed.wait(lock, through);
  } else {
    state_->changed.wait_until(lock, until, through);
  }
}

std::string Worker::failure() const {
  try {
    rethrow();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown kind";
  }
  return "";
}

void Worker::rethrow() const {
  if (state_->error) std::rethrow_exception(state_->error);
}

}  // namespace trimtab
