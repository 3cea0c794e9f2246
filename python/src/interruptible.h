// SPDX-License-Identifier: Apache-2.0
// Long calls that Ctrl-C ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "bindings.h"

namespace trimtab::python {

// Calls work(stop) in a thread of its own, without the GIL, while this one looks for signals every
// few milliseconds (Python handles them in its main thread only; in others nothing is ever found).
// When a handler raises, as Ctrl-C's does, it sets `stop`, waits until work() has thrown or
// returned, and throws what was raised. Otherwise it throws what work() throws. Call it with the
// GIL held.
template <class Work>
void run_interruptible(Work work) {
  constexpr std::chrono::milliseconds kBetweenLooks(20);
  std::atomic<bool> stop{false};
  std::mutex mutex;  // guards done
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;  // the worker's; read after it was joined
  bool raised = false;
  {
    const nb::gil_scoped_release release;
    std::thread worker([&] {
      try {
        work(stop);
      } catch (...) {
        error = std::current_exception();
      }
      const std::scoped_lock lock(mutex);
      done = true;
      changed.notify_one();
    });
    for (;;) {
      {
        std::unique_lock lock(mutex);
        if (changed.wait_for(lock, kBetweenLooks, [&] { return done; })) break;
      }
      const nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() == 0) continue;
      raised = true;
      stop = true;
      break;
    }
    worker.join();
  }
  if (raised) throw nb::python_error();
  if (error) std::rethrow_exception(error);
}

}  // namespace trimtab::python
