// SPDX-License-Identifier: Apache-2.0
#include "trimtab/team.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trimtab {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now() noexcept {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

void pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // YIELD does nothing on most cores
#endif
}

// How long a helper looks out for the next job before it sleeps. Waking it takes 5 to 60 us, and
// between two jobs of a layer there are up to some tens of microseconds.
constexpr int64_t kMostPatience = 60'000, kLeastPatience = 1'000;  // nanoseconds
// After so long it is worth a system call to see whether other threads want the core. A helper that
// sleeps meanwhile gets it back sooner than one that has used up its share in looking out.
constexpr int64_t kKeepCore = 5'000;
// After so long the caller sleeps until its helpers are done.
constexpr int64_t kMostWait = 60'000;

// Looks for a condition to come true, for some nanoseconds: whether it did.
template <class Condition>
bool spin_until(const Condition& condition, int64_t limit) noexcept {
  constexpr int kLooks = 16;  // between two looks at the clock, which takes 25 ns
  const int64_t end = now() + limit;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (now() < end);
  return false;
}

// How often this thread has lost its core to others.
int64_t lost_cores() noexcept {
#if defined(RUSAGE_THREAD)
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) == 0) return usage.ru_nivcsw;
#endif
  return 0;
}

// job_: whether helpers may join, and how many are in it.
constexpr uint32_t kOpen = 1U << 31;

}  // namespace

Team::Team(int threads, Helpers helpers) {
  if (threads < 1) throw InvalidArgument(cat("a team needs at least 1 thread, got ", threads));
  scratch_.resize(threads);
  if (helpers == Helpers::kVisitors) return;
  helpers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
  } catch (const std::system_error& error) {  // a thread that is not joined would end the process
    const size_t failed = helpers_.size() + 2;
    dismiss();
    throw Error(cat("can't start thread ", failed, " of a team of ", threads, ": ", error.what()));
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

Team::Counts Team::counts() const {
  return {forks_.load(std::memory_order_relaxed), wakes_.load(std::memory_order_relaxed),
          sleeps_.load(std::memory_order_relaxed)};
}

void Team::fork_join(int64_t count, void* body, Invoke invoke) {
  if (in_use_.exchange(true, std::memory_order_acquire)) {
    throw InvalidArgument(
        "a team is used inside its own for_each, or by two threads at the same time");
  }
  body_ = body;
  invoke_ = invoke;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);  // published by job_
  job_.store(kOpen, std::memory_order_release);
  // Sequentially consistent, as is the helpers' side: either this thread sees that a helper is
  // about to sleep, or the helper sees the new epoch.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  forks_.fetch_add(1, std::memory_order_relaxed);
  wake(count - 1);
  work(0);
  wait_for_helpers();
  std::exception_ptr error = std::exchange(error_, nullptr);
  in_use_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

void Team::work(int member) noexcept {
  // Relaxed: the counter only hands out indices; job_ orders the work itself.
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
    try {
      invoke_(body_, i, member);
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

// Closes the job and waits for those that are in it.
void Team::wait_for_helpers() noexcept {
  uint32_t job = job_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  if (job == 0) return;
  const auto done = [this] { return job_.load(std::memory_order_acquire) == 0; };
  if (spin_until(done, kMostWait)) return;
  // Sequentially consistent, as is leave(): either this thread sees that the last helper has left,
  // or the helper sees that this thread sleeps.
  for (;;) {
    caller_sleeps_.store(1, std::memory_order_seq_cst);
    if (job_.load(std::memory_order_seq_cst) == 0) break;
    caller_sleeps_.wait(1);
  }
  caller_sleeps_.store(0, std::memory_order_relaxed);
}

// Takes part in the job unless it is over.
void Team::join(int member) noexcept {
  uint32_t job = job_.load(std::memory_order_relaxed);
  do {
    if ((job & kOpen) == 0) return;
  } while (!job_.compare_exchange_weak(job, job + 1, std::memory_order_acq_rel));
  work(member);
  leave();
}

void Team::leave() noexcept {
  if (job_.fetch_sub(1, std::memory_order_seq_cst) != 1) return;
  if (caller_sleeps_.exchange(0, std::memory_order_seq_cst) == 1) caller_sleeps_.notify_one();
}

void Team::admit() {
  stop_.store(false, std::memory_order_relaxed);
}

void Team::dismiss() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

// How long a helper looks out for work, from what that brought so far.
class Team::Patience {
 public:
  // Looks out: whether there is work.
  template <class Condition>
  bool looks_out(const Condition& called) noexcept {
    if (spin_until(called, std::min(patience_, kKeepCore))) return true;
    if (patience_ <= kKeepCore) return false;
    const bool shares_core = std::exchange(lost_cores_, lost_cores()) != lost_cores_;
    return !shares_core && spin_until(called, patience_ - kKeepCore);
  }
  // The helper slept, and was called after so long: in vain if that was soon.
  void slept(int64_t nanoseconds) noexcept {
    patience_ =
        nanoseconds < kMostPatience ? kMostPatience : std::max(patience_ / 2, kLeastPatience);
  }

 private:
  int64_t patience_ = kMostPatience, lost_cores_ = 0;
};

void Team::help(int member) {
  Patience patience;
  uint32_t seen = epoch_.load(std::memory_order_acquire);
  while (!stop_.load(std::memory_order_relaxed)) {
    join(member);  // also the job of the epoch that was seen first
    if (!patience.looks_out([&] { return epoch_.load(std::memory_order_acquire) != seen; }))
      patience.slept(sleep(seen));
    seen = epoch_.load(std::memory_order_acquire);
  }
}

// Sleeps until there is another epoch; returns after how many nanoseconds it began, which may be
// long before this thread gets a core.
int64_t Team::sleep(uint32_t seen) noexcept {
  const int64_t start = now();
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.wait(seen, std::memory_order_seq_cst);
  return std::max<int64_t>(0, called_.load(std::memory_order_relaxed) - start);
}

// Wakes as many helpers as can be of use. Those that are woken no longer count as sleepers, even if
// it takes them long to get a core. One that has found a new epoch before it slept may be counted
// once too often, which costs a system call at the next fork.
void Team::wake(int64_t wanted) noexcept {
  const int32_t asleep = sleepers_.load(std::memory_order_seq_cst);
  if (asleep == 0) return;
  const auto woken = static_cast<int32_t>(std::min<int64_t>(asleep, wanted));
  sleepers_.fetch_sub(woken, std::memory_order_relaxed);
  wakes_.fetch_add(1, std::memory_order_relaxed);
  called_.store(now(), std::memory_order_relaxed);
  if (woken == asleep) {
    epoch_.notify_all();
  } else {
    for (int32_t i = 0; i < woken; ++i) epoch_.notify_one();
  }
}

}  // namespace trimtab
