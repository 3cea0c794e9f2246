// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of one group of threads share: how far each has come, what it has published, and the one
// place where they wait for each other. Counters only grow; all waiting is "until every rank has come to n".
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/failure_domain.h"

namespace trimtab {

// What a rank counts: items posted, collectives started, collectives completed (its peers' memory is read).
enum class Milestone { kPosted, kStarted, kCompleted };

// What a rank brings to a collective.
struct Operation {
  enum class Kind { kBarrier, kAllGather, kReduceScatter, kAllToAll };
  Kind kind = Kind::kBarrier;
  std::span<const std::byte> send;
  std::span<const int64_t> counts;  // kReduceScatter: floats of each rank; kAllToAll: bytes for each rank
};
const char* name(Operation::Kind kind);

class Group {
 public:
  // Items and operations of a rank that are kept at a time.
  static constexpr uint64_t kRing = 8;

  // One rank's part. Plain members belong to that rank and are published by its counters.
  struct alignas(64) Seat {
    std::array<std::atomic<uint64_t>, 3> progress{};  // by Milestone
    std::atomic<bool> left{false};
    int spins = 0;  // how long to spin before sleeping; used by its own rank only
    std::array<const void*, kRing> items{};
    std::array<Operation, kRing> operations{};
    std::shared_ptr<Group> offer;  // a new group, while split() hands it round
  };

  // members [size]: the rank in the domain of each rank here.
  Group(std::shared_ptr<FailureDomain> domain, std::vector<int> members);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  const std::shared_ptr<FailureDomain>& domain() const { return domain_; }
  const std::vector<int>& members() const { return members_; }
  // [size] numbered in order of first appearance.
  const std::vector<int32_t>& hosts() const { return hosts_; }
  bool shares_memory() const;
  int member(int rank) const { return members_[static_cast<size_t>(rank)]; }
  Seat& seat(int rank) { return seats_[static_cast<size_t>(rank)]; }
  const Seat& seat(int rank) const { return seats_[static_cast<size_t>(rank)]; }

  // Publishes that `rank` has come to n, one more than before, and wakes those who waited for it.
  void advance(int rank, Milestone what, uint64_t n);
  // Has every rank come to n? Throws CommError when some have not and never will. rank asks.
  bool reached(int rank, Milestone what, uint64_t n, const char* operation);
  // Blocks until reached().
  void wait(int rank, Milestone what, uint64_t n, const char* operation);
  // `rank` takes no further part.
  void leave(int rank) noexcept;
  void wake() noexcept;

  // Fails the domain on behalf of `rank`, which missed `peer`, and throws.
  [[noreturn]] void fail(int rank, int peer, const char* operation, const std::string& what);
  // For `rank`, that the domain has failed.
  [[noreturn]] void throw_failed(int rank, const char* operation);

 private:
  // The first rank that has not come to n, preferably one that has left; -1 when there is none.
  struct Standing {
    int missing = -1;
    bool left = false;
  };
  Standing standing(Milestone what, uint64_t n) const;
  uint64_t progress(size_t rank, Milestone what) const { return seats_[rank].progress[static_cast<size_t>(what)]; }
  bool spin(Seat& seat, Milestone what, uint64_t n) const;
  [[noreturn]] void throw_missing(int rank, Standing standing, const char* operation);

  const std::shared_ptr<FailureDomain> domain_;
  const std::vector<int> members_;
  const std::vector<int32_t> hosts_;
  std::vector<Seat> seats_;

  std::mutex mutex_;  // guards nothing but the step from looking to sleeping
  std::condition_variable wake_;
  std::atomic<int> waiters_{0};
};

}  // namespace trimtab
