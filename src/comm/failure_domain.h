// SPDX-License-Identifier: Apache-2.0
// What the group of one run_ranks and all groups split from it share: the options, whether a rank has failed, and which
// ranks are reading a peer's memory at this moment. Ranks here are those of the first group.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

class Group;

class FailureDomain {
 public:
  // Throws InvalidArgument for ranks < 1, a timeout <= 0, or hosts of another number of ranks.
  FailureDomain(int ranks, const GroupOptions& options);

  int ranks() const { return static_cast<int>(readers_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  int32_t host(int rank) const { return hosts_[static_cast<size_t>(rank)]; }
  // Does every rank have a core of its own, so that spinning takes none from the peer that is waited for?
  bool may_spin() const { return may_spin_; }

  bool failed() const { return failed_.load(); }
  // Only once failed(): who failed first, whom that rank blamed (itself, or the peer that it missed), and why.
  int culprit() const { return culprit_; }
  int blamed() const { return blamed_; }
  const std::string& reason() const { return reason_; }

  // Marks the domain as failed, wakes all waiters, and returns when no other rank reads a peer's memory. The first
  // culprit and reason stay.
  void fail(int rank, int blamed, const char* reason) noexcept;

  // Around reading peers' memory. False: the domain has failed and nothing may be read.
  bool begin_read(int rank) noexcept;
  void end_read(int rank) noexcept;

  void enroll(Group* group);
  void withdraw(Group* group);

 private:
  struct alignas(64) Reader {
    std::atomic<int> depth{0};
  };

  const std::chrono::milliseconds timeout_;
  const bool may_spin_;
  const std::vector<int32_t> hosts_;  // [ranks]
  std::vector<Reader> readers_;       // [ranks]

  std::mutex mutex_;  // guards groups_, and the next three until failed_ is set
  std::vector<Group*> groups_;
  int culprit_ = -1;
  int blamed_ = -1;
  std::string reason_;
  std::atomic<bool> failed_{false};
};

}  // namespace trimtab
