// SPDX-License-Identifier: Apache-2.0
// A fork-join team of threads: the compute threads of one rank. The thread that calls is member 0, so a team of one
// starts no thread and costs nothing. Results must not depend on the team's size: whoever uses it splits work over
// outputs, never inside a sum.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace trimtab {

class Team {
 public:
  // threads >= 1, the caller's included.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(i) for every i in [0, count), shared dynamically over the members; returns when all are done. The first
  // exception of any of them is rethrown here. Not re-entrant: body must not use the same team.
  template <class Body>
  void for_each(int64_t count, Body&& body) {
    if (size() == 1 || count <= 1) {
      for (int64_t i = 0; i < count; ++i) body(i);
      return;
    }
    // A plain pointer and a function: no std::function is built, so nothing is allocated per call.
    using Callable = std::remove_reference_t<Body>;
    fork_join(count, const_cast<std::remove_const_t<Callable>*>(&body),
              [](void* b, int64_t i) { (*static_cast<Callable*>(b))(i); });
  }

 private:
  using Invoke = void (*)(void* body, int64_t i);

  void fork_join(int64_t count, void* body, Invoke invoke);
  void work();
  void helper_loop();

  std::vector<std::thread> helpers_;

  std::mutex mutex_;  // guards everything below but next_
  std::condition_variable start_, done_;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  void* body_ = nullptr;
  Invoke invoke_ = nullptr;
  int64_t count_ = 0;
  std::exception_ptr error_;
  std::atomic<int64_t> next_{0};
};

}  // namespace trimtab
