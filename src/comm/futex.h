// SPDX-License-Identifier: Apache-2.0
// A thread sleeps here until a number in memory changes. Processes may share the number, and the
// sleep has a timeout; std::atomic::wait can do neither.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace trimtab {

// Sleeps while the number is `expected`, at most for `timeout`; may return early.
inline void futex_wait(std::atomic<uint32_t>& number, uint32_t expected,
                       std::chrono::nanoseconds timeout) {
  const auto count = std::max<int64_t>(timeout.count(), 0);
  const timespec time{static_cast<time_t>(count / 1'000'000'000),
                      static_cast<long>(count % 1'000'000'000)};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&number), FUTEX_WAIT, expected, &time, nullptr,
            0);
}

inline void futex_wake_all(std::atomic<uint32_t>& number) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&number), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
}

}  // namespace trimtab
