// SPDX-License-Identifier: Apache-2.0
// What all groups that come from one another share: the options, the memory of the host, whether a
// rank has failed, which ranks are reading a peer's memory at this moment, and where each rank
// sleeps. Ranks here are those of the first group. Ranks that are threads share the object;
// processes have one each, over the same State.
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
  // In memory that the ranks share; zeroed memory is its beginning.
  struct State;
  static size_t state_bytes(int ranks);

  // Ranks that are threads. Throws InvalidArgument for ranks < 1, a timeout <= 0, or hosts of
  // another number of ranks.
  FailureDomain(int ranks, const GroupOptions& options);
  // One of several processes. options.hosts: the host of each rank. state: of this host; kept: its
  // memory, on the rank that has allocated it.
  FailureDomain(int ranks, const GroupOptions& options, std::shared_ptr<SharedMemory> memory,
                Buffer kept, void* state);
  ~FailureDomain();
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  int ranks() const { return static_cast<int>(hosts_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  int32_t host(int rank) const { return hosts_[rank]; }
  // Does every rank of this host have a core of its own, so that spinning takes none from the peer
  // that is waited for?
  bool may_spin() const { return may_spin_; }
  SharedMemory& memory() { return *memory_; }

  // The ranks on other hosts, or null: then `rank` of any group is in the memory that is shared
  // here.
  Outside* outside() const { return outside_.get(); }
  void set_outside(std::unique_ptr<Outside> outside) { outside_ = std::move(outside); }

  bool failed() const;
  // Only once failed(): who failed first, whom that rank blamed (itself, or the peer that it
  // missed), and why.
  int culprit() const;
  int blamed() const;
  const char* reason() const;

  // Marks the domain as failed, wakes all waiters, and returns when no other rank reads a peer's
  // memory. The first culprit and reason stay. tell_outside: do other hosts not know yet?
  void fail(int rank, int blamed, const char* reason, bool tell_outside = true) noexcept;

  // Around reading peers' memory. False: the domain has failed and nothing may be read.
  bool begin_read(int rank) noexcept;
  void end_read(int rank) noexcept;

  // A rank that is about to sleep, from the constructor on: it looks for what it waits for, then
  // sleeps if wake() has not been called since `word` was read.
  class Sleeper {
   public:
    Sleeper(FailureDomain& domain, int rank);
    ~Sleeper();
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    uint32_t word() const;
    void sleep(uint32_t word, std::chrono::nanoseconds timeout) const;

   private:
    State& state_;
    const size_t rank_;
  };
  bool sleeps(int rank) const noexcept;
  void wake(int rank) noexcept;

  // Numbers of groups; see Outside::peers.
  int64_t next_number() const { return next_number_; }
  void set_next_number(int64_t number) { next_number_ = number; }

  // The shared state of a new group, made by one of its ranks; its memory is kept until all ends
  // have gone.
  GroupState* make_group(int ends);

 private:
  State& state() const { return *state_; }

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
