// SPDX-License-Identifier: Apache-2.0
// One rank's end of a group, as far as ranks share memory: how far each has come, what it has
// published, and the one place where they wait for each other. Counters only grow; all waiting is
// "until every rank has come to n".
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/failure_domain.h"
#include "comm/outside.h"

namespace trimtab {

// What a rank counts: items posted, collectives started, collectives completed (its peers' memory
// is read).
enum class Milestone { kPosted, kStarted, kCompleted };

// What a rank brings to a collective.
struct Operation {
  enum class Kind : int32_t { kBarrier, kAllGather, kReduceScatter, kAllToAll };
  Kind kind = Kind::kBarrier;
  std::span<const std::byte> send;
  std::span<const int64_t>
      counts;  // kReduceScatter: floats of each rank; kAllToAll: bytes for each rank

  // The part of send that is for a rank.
  std::span<const std::byte> block_for(int rank) const;
  // Of counts, to compare those of ranks that can't see each other's.
  uint64_t checksum() const;
};
const char* name(Operation::Kind kind);

// The memory that the ranks of one group on one host share, a seat each.
struct GroupState {
  // Items and operations of a rank that are kept at a time.
  static constexpr uint64_t kRing = 8;

  // Plain members belong to the seat's rank and are published by its counters.
  struct alignas(64) Seat {
    std::array<std::atomic<uint64_t>, 3> progress{};  // by Milestone
    std::atomic<bool> left{false};
    std::array<const void*, kRing> items{};
    std::array<Operation, kRing> operations{};
    GroupState* offer = nullptr;  // a new group, while split() hands it round
  };

  alignas(64) std::atomic<int> ends{0};
  // Behind it: the seats.
  Seat& seat(int seat) { return reinterpret_cast<Seat*>(this + 1)[seat]; }
  static size_t bytes(int seats) {
    return sizeof(GroupState) + static_cast<size_t>(seats) * sizeof(Seat);
  }
};

class Group {
 public:
  static constexpr uint64_t kRing = GroupState::kRing;
  using Seat = GroupState::Seat;

  // members [size]: the rank in the domain of each rank here. state: shared by those that share
  // memory with this one, which are all of them but where the domain has an Outside.
  Group(std::shared_ptr<FailureDomain> domain, std::vector<int> members, int rank,
        GroupState* state);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return rank_; }
  const std::shared_ptr<FailureDomain>& domain() const { return domain_; }
  const std::vector<int>& members() const { return members_; }
  int member() const { return members_[rank_]; }
  // [size] numbered in order of first appearance.
  const std::vector<int32_t>& hosts() const { return hosts_; }
  bool on_one_host() const;
  // Does the rank have a seat here?
  bool is_here(int rank) const { return seats_[rank] != nullptr; }
  Seat& seat(int rank) { return *seats_[rank]; }
  const Seat& seat(int rank) const { return *seats_[rank]; }

  // Publishes that this rank has come to n, one more than before, and wakes those who waited for
  // it.
  void advance(Milestone what, uint64_t n);
  // Which of the ranks here has not come to n?
  Standing standing(Milestone what, uint64_t n) const;
  // This rank takes no further part.
  void leave() noexcept;

  // Asks `look` for a Standing. True when all are there; throws CommError when some are not and
  // never will be.
  template <class Look>
  bool reached(const char* operation, const Look& look) {
    return settled(look(), operation);
  }
  // Blocks until reached(): spins where there are cores for it, where there are not lets peers have
  // this one, then sleeps.
  template <class Look>
  void wait(const char* operation, const Look& look) {
    if (reached(operation, look) || spin(look) || yield(look)) return;
    Nap nap(*this);
    while (!nap.over(look(), operation)) nap.sleep();
  }
  // The same for what all ranks here count.
  bool reached(Milestone what, uint64_t n, const char* operation) {
    return reached(operation, [&] { return standing(what, n); });
  }
  void wait(Milestone what, uint64_t n, const char* operation) {
    wait(operation, [&] { return standing(what, n); });
  }

  // Fails the domain on behalf of this rank, which missed `peer`, and throws.
  [[noreturn]] void fail(int peer, const char* operation, const std::string& what);
  // For this rank, that the domain has failed.
  [[noreturn]] void throw_failed(const char* operation);

 private:
  // One wait: when it began, and how it is slept through.
  class Nap {
   public:
    explicit Nap(Group& group);
    // Is the wait over? Throws when it must not go on.
    bool over(Standing now, const char* operation);
    void sleep();

   private:
    Group& group_;
    const std::chrono::steady_clock::time_point end_;
    const FailureDomain::Sleeper sleeper_;
    uint32_t word_;
    std::chrono::steady_clock::time_point checked_;
    std::chrono::microseconds slice_;
  };

  bool settled(Standing now, const char* operation);
  template <class Look>
  bool spin(const Look& look) {
    for (int i = 0; i < spins_; ++i) {
      if (look().missing < 0) return tune_spins(true);
      pause();
    }
    return spins_ > 0 && tune_spins(false);
  }
  template <class Look>
  bool yield(const Look& look) {
    if (domain_->may_spin() || (naps_before_yield_ > 0 && naps_before_yield_-- > 0)) return false;
    for (int i = 0; i < kYields; ++i) {
      const bool quick = yield_core();
      if (look().missing < 0) return true;
      if (!quick) return false;
    }
    return false;
  }
  static constexpr int kYields = 4;
  // Was this rank soon back? If not, the next waits sleep at once.
  bool yield_core();
  bool tune_spins(bool right);
  static void pause();

  const std::shared_ptr<FailureDomain> domain_;
  const std::vector<int> members_;
  const std::vector<int32_t> hosts_;
  const int rank_;
  GroupState* const state_;
  std::vector<Seat*> seats_;  // [size] null: on another host, out of reach
  std::vector<int> here_;     // the ranks with a seat
  int spins_;                 // how long to spin before sleeping
  int naps_before_yield_ = 0, naps_after_long_yield_ = 1;
};

}  // namespace trimtab
