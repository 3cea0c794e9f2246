// SPDX-License-Identifier: Apache-2.0
// A FailureDomain holds what all groups that come from one another share: the options, the memory
// of the host, whether a rank has failed, which ranks are reading a peer's memory at this moment,
// and where each rank sleeps. Ranks here are numbered as in the first group. Ranks that are threads
// share one object; processes have one object each, over the same State.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/outside.h"
#include "comm/shared_memory.h"
#include "trimtab/communicator.h"

namespace trimtab {

struct GroupState;

class FailureDomain {
 public:
  // It stands in memory that the ranks share, and begins as zeroed memory.
  struct State;
  static size_t state_bytes(int ranks);

  // Ranks that are threads. Throws InvalidArgument for ranks < 1, a timeout <= 0, or hosts of
  // another number of ranks.
  FailureDomain(int ranks, const GroupOptions& options);
  // For one of several processes. options.hosts: the host of each rank. state: the State of this
  // host; kept: its memory, on the rank that has allocated it.
  FailureDomain(int ranks, const GroupOptions& options, std::shared_ptr<SharedMemory> memory,
                Buffer kept, void* state);
  ~FailureDomain();
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  int ranks() const { return static_cast<int>(hosts_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  int32_t host(int rank) const { return hosts_[rank]; }
  // Does every rank of this host have a core of its own? If not, a rank that spins takes the core
  // from the peer that it waits for.
  bool may_spin() const { return may_spin_; }
  SharedMemory& memory() { return *memory_; }
  const std::shared_ptr<SharedMemory>& shared_memory() const { return memory_; }

  // The ranks on other hosts. Null: all ranks share memory.
  Outside* outside() const { return outside_.get(); }
  void set_outside(std::unique_ptr<Outside> outside) { outside_ = std::move(outside); }

  bool failed() const;
  // Valid once failed(): which rank failed first, which rank it blamed (itself, or the peer that it
  // missed), and why.
  int culprit() const;
  int blamed() const;
  const char* reason() const;

  // Marks the domain as failed, wakes all waiters, and returns when no other rank reads a peer's
  // memory. It waits for readers for the timeout, or for the memory's least_patience() if that is
  // longer; memory from allocate() then stays as it is for readers that are still at it. The first
  // culprit and reason stay. tell_outside: do other hosts not know yet?
  void fail(int rank, int blamed, const char* reason, bool tell_outside = true) noexcept;

  // Called before and after reading peers' memory. False: the domain has failed, and nothing may be
  // read.
  bool begin_read(int rank) noexcept;
  void end_read(int rank) noexcept;

  // A rank that is about to sleep. It first reads wake_count(), then looks for what it waits for,
  // then sleeps; sleep() returns at once if wake() has been called since the count was read.
  class Sleeper {
   public:
    Sleeper(FailureDomain& domain, int rank);
    ~Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    uint32_t wake_count() const;
    void sleep(uint32_t wake_count, std::chrono::nanoseconds timeout) const;

   private:
    State& state_;
    const size_t rank_;
  };
  bool sleeps(int rank) const noexcept;
  void wake(int rank) noexcept;

  // The number that the next group gets; see Outside::peers.
  int64_t next_number() const { return next_number_; }
  void set_next_number(int64_t number) { next_number_ = number; }

  // The shared state of a new group, made by one of its ranks; its memory is kept until all ends
  // have gone.
  GroupState* make_group(int64_t ends);

 private:
  State& state() const { return *state_; }
  void wait_for_readers(int rank) noexcept;

  const std::chrono::milliseconds timeout_;
  const std::vector<int32_t> hosts_;  // [ranks]
  const bool may_spin_;
  const std::shared_ptr<SharedMemory> memory_;
  Buffer kept_;
  State* const state_;
  std::unique_ptr<Outside> outside_;
  std::atomic<int64_t> next_number_{1};

  std::mutex mutex_;  // guards groups_
  std::vector<Buffer> groups_;
};

}  // namespace trimtab
