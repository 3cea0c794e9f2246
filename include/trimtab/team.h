// SPDX-License-Identifier: Apache-2.0
// A fork-join team of threads: the compute threads of one rank. The thread that calls is member 0,
// so a team of one starts no thread and costs nothing. Results must not depend on the team's size:
// whoever uses it splits work over outputs, never inside a sum.
#pragma once

#include <atomic>
#include <condition_variable>
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
  // The threads that help the caller are the team's own, which sleep between calls, or visitors:
  // threads of others that are in help(). for_each waits for a visitor that is late.
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
  // them is rethrown here. Not re-entrant: body must not use the same team.
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

 private:
  using Invoke = void (*)(void* body, int64_t i, int member);

  void fork_join(int64_t count, void* body, Invoke invoke);
  void work(int member);

  std::vector<std::thread> helpers_;
  std::vector<Buffer> scratch_;  // [size()]

  std::mutex mutex_;  // guards everything below but next_
  std::condition_variable start_, done_;
  uint64_t generation_ = 0;
  std::vector<uint64_t> seen_;  // [size()] the last generation that each member took part in
  int busy_ = 0;
  bool stop_ = false;
  void* body_ = nullptr;
  Invoke invoke_ = nullptr;
  int64_t count_ = 0;
  std::exception_ptr error_;
  std::atomic<int64_t> next_{0};
};

}  // namespace trimtab
