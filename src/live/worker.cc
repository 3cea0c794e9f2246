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
  bool stop = false;
  bool ended = false;
  // Written by the worker with what the job made; read without the mutex at every step.
  std::atomic<JobStatus> status{JobStatus::kIdle};
  std::exception_ptr error;
};

Worker::Worker() : state_(std::make_shared<State>()), thread_([state = state_] { run(state); }) {}

Worker::~Worker() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, patience_, [this] { return state_->ended; });
  lock.unlock();
  ended ? thread_.join() : thread_.detach();
}

void Worker::run(const std::shared_ptr<State>& state) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stop || state->job; });
      if (!state->job) {
        state->ended = true;
        state->changed.notify_all();
        return;
      }
      job = std::exchange(state->job, nullptr);
    }
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
    state->status.store(status, std::memory_order_release);
    state->changed.notify_all();
  }
}

void Worker::start(Job job) {
  const std::lock_guard lock(state_->mutex);
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
  // Not wait_until() for a time that never comes: some systems count it from another clock, past
  // the end of that.
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
