// SPDX-License-Identifier: Apache-2.0
#include "trimtab/team.h"

#include <system_error>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// stop is guarded by mutex and looked at when start is notified.
void stop_and_join(std::mutex& mutex, bool& stop, std::condition_variable& start,
                   std::vector<std::thread>& helpers) {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  start.notify_all();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

Team::Team(int threads, Helpers helpers) {
  if (threads < 1) throw InvalidArgument(cat("a team needs at least 1 thread, got ", threads));
  scratch_.resize(threads);
  seen_.resize(threads);
  if (helpers == Helpers::kVisitors) return;
  helpers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
  } catch (const std::system_error& error) {  // a thread that is not joined would end the process
    stop_and_join(mutex_, stop_, start_, helpers_);
    throw Error(cat("can't start thread ", helpers_.size() + 2, " of a team of ", threads, ": ",
                    error.what()));
  }
}

Team::~Team() {
  dismiss();
}

void Team::reserve_scratch(size_t bytes) {
  for (Buffer& buffer : scratch_) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  }
}

void Team::fork_join(int64_t count, void* body, Invoke invoke) {
  {
    const std::lock_guard lock(mutex_);
    if (body_ != nullptr) {
      throw InvalidArgument(
          "a team is used inside its own for_each, or by two threads at the same time");
    }
    body_ = body;
    invoke_ = invoke;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);  // published by the mutex
    busy_ = size() - 1;
    ++generation_;
  }
  start_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::work(int member) {
  // Relaxed: the counter only hands out indices; the mutex orders the work itself.
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
    try {
      invoke_(body_, i, member);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

void Team::admit() {
  const std::lock_guard lock(mutex_);
  stop_ = false;
}

void Team::dismiss() {
  stop_and_join(mutex_, stop_, start_, helpers_);
}

void Team::help(int member) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      uint64_t& seen = seen_[member];
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    work(member);
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --busy_ == 0;
    }
    if (last) done_.notify_one();
  }
}

}  // namespace trimtab
