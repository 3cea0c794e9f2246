// SPDX-License-Identifier: Apache-2.0
// Memory that the ranks of one host share: it has the same address on all of them.
#pragma once

#include <chrono>
#include <cstddef>

#include "trimtab/tensor.h"

namespace trimtab {

class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Zeroed. Throws Error when there is no more.
  virtual Buffer allocate(size_t bytes) = 0;
  virtual bool shares(const void* p, size_t bytes) const = 0;
  // From now on memory that is given back stays as it is, since a slower peer may still read it.
  virtual void close() noexcept = 0;
  // Is the process of this rank (of the domain) still there?
  virtual bool alive(int rank) const = 0;
  // The least time for which a rank that fails waits for peers that read its memory.
  virtual std::chrono::seconds least_patience() const = 0;
};

// For ranks that are threads, which share all memory.
class ProcessMemory final : public SharedMemory {
 public:
  Buffer allocate(size_t bytes) override { return Buffer(bytes); }
  bool shares(const void*, size_t) const override { return true; }
  void close() noexcept override {}  // the last rank to go gives it back
  bool alive(int) const override { return true; }
  // A thread can't be stopped alone, and what it reads is freed when it is waited for no more.
  std::chrono::seconds least_patience() const override { return std::chrono::seconds(60); }
};

}  // namespace trimtab
