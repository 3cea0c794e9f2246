// SPDX-License-Identifier: Apache-2.0
// A fork-join team of threads: the compute threads of one rank. The thread that calls is member 0,
// so a team of one starts no thread and costs nothing. Results must not depend on the team's size:
// whoever uses it splits work over outputs, never inside a sum.
//
// A call costs less than a microsecond while the helpers still look out for work, which they do for
// some time after the last call before they sleep. The caller waits for the work and not for
// helpers: one that comes late, because its core is busy with something else, finds the call over.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "trimtab/tensor.h"

namespace trimtab {

class Team {
 public:
  // The threads that help the caller are the team's own, or visitors: threads of others that are in
  // help().
  enum class Helpers { kOwn, kVisitors };

  // threads >= 1, the caller's included.
  explicit Team(int threads, Helpers helpers = Helpers::kOwn);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(scratch_.size()); }

  // Visitors only. help(): lends the calling thread to the team as member 1, .., size() - 1, until
  // dismiss(). Between admit() and dismiss() there must be one thread for each; a visitor may come
  // after dismiss(), then it just leaves.
  void help(int member);
  void admit();
  void dismiss();

  // Calls body(i) or body(i, member) for every i in [0, count), shared dynamically over the
  // members, which take them in order; returns when all are done. The first exception of any of
  // them is rethrown here. Not re-entrant: body must not use the same team. Makes no system call
  // and takes no lock unless a helper sleeps, or this thread has waited for one for long.
  template <class Body>
  void for_each(int64_t count, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    // A plain pointer and a function: no std::function is built, so nothing is allocated per call.
    const auto invoke = [](void* b, int64_t i, int member) {
      if constexpr (std::is_invocable_v<Callable&, int64_t, int>) {
        (*static_cast<Callable*>(b))(i, member);
      } else {
        (*static_cast<Callable*>(b))(i);
      }
    };
    void* const callable = const_cast<std::remove_const_t<Callable>*>(&body);
    if (size() == 1 || count <= 1) {
      for (int64_t i = 0; i < count; ++i) invoke(callable, i, 0);
    } else {
      fork_join(count, callable, invoke);
    }
  }

  // Each member has memory of its own, 64-byte aligned, for what lasts no longer than one body.
  // reserve_scratch() sees to it that each has at least `bytes` of it; what was there is lost if it
  // has to grow. It must not be called while for_each runs.
  void reserve_scratch(size_t bytes);
  std::byte* scratch(int member) const { return scratch_[member].data(); }

  // What calls have cost since the team was made.
  struct Counts {
    int64_t forks;   // calls that were shared with helpers
    int64_t wakes;   // forks that had to wake helpers, which is a system call
    int64_t sleeps;  // times that a helper went to sleep
  };
  Counts counts() const;

 private:
  using Invoke = void (*)(void* body, int64_t i, int member);
  class Patience;

  void fork_join(int64_t count, void* body, Invoke invoke);
  void work(int member) noexcept;
  void join(int member) noexcept;
  void leave() noexcept;
  void wait_for_helpers() noexcept;
  int64_t sleep(uint32_t seen) noexcept;
  void wake(int64_t wanted) noexcept;

  std::vector<std::thread> helpers_;
  std::vector<Buffer> scratch_;  // [size()]

  // The current job; written by the caller while no helper is in it, published by job_.
  void* body_ = nullptr;
  Invoke invoke_ = nullptr;
  int64_t count_ = 0;
  std::mutex error_mutex_;  // guards error_
  std::exception_ptr error_;

  // Each on a cache line of its own: members share next_ all the time, and helpers that look out
  // for work read epoch_.
  alignas(64) std::atomic<int64_t> next_{0};    // the next index to hand out
  alignas(64) std::atomic<uint32_t> job_{0};    // kOpen while helpers may join, + the helpers in it
  alignas(64) std::atomic<uint32_t> epoch_{0};  // changes with each job and each dismiss()
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int32_t> sleepers_{0};  // helpers that sleep and nobody has woken
  std::atomic<int64_t> called_{0};                // when helpers were last woken, in nanoseconds
  std::atomic<uint32_t> caller_sleeps_{0};
  std::atomic<bool> in_use_{false};
  std::atomic<int64_t> forks_{0}, wakes_{0}, sleeps_{0};
};

}  // namespace trimtab
