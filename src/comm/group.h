// SPDX-License-Identifier: Apache-2.0
// One rank's end of a group, for the ranks that share memory with it. Each rank counts how far it
// has come and publishes what it brings. All waiting of ranks for each other happens here, and it
// always waits until every rank's counter has come to some n. Counters only grow.
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
#include "trimtab/table.h"

namespace trimtab {

// The counters of a rank: items that it has posted, collectives that it has started, and
// collectives that it has completed (it has read its peers' memory).
enum class Milestone { kPosted, kStarted, kCompleted };

// What one rank brings to a collective.
struct Operation {
  enum class Kind : int32_t { kBarrier, kAllGather, kReduceScatter, kAllToAll };
  Kind kind = Kind::kBarrier;
  std::span<const std::byte> send;
  // kReduceScatter: the floats for each rank; kAllToAll: the bytes for each rank; else empty.
  std::span<const int64_t> counts;

  // The part of `send` that goes to a rank.
  std::span<const std::byte> block_for(int rank) const;
  // A checksum of the counts. Ranks on different hosts compare it, since they can't see each
  // other's counts.
  uint64_t checksum() const;
};
const char* name(Operation::Kind kind);

// The memory that the ranks of one group on one host share: a RankState for each.
struct GroupState {
  // The items and operations of a rank that are kept at a time.
  static constexpr uint64_t kRing = 8;

  // The rank alone writes its state; its counters publish the members that are not atomic.
  struct alignas(64) RankState {
    std::array<std::atomic<uint64_t>, 3> progress{};  // by Milestone
    std::atomic<bool> left{false};
    std::array<const void*, kRing> items{};
    std::array<Operation, kRing> operations{};
    GroupState* offer = nullptr;  // a new group, while split() hands it to the others

    std::atomic<uint64_t>& count(Milestone what) { return progress[static_cast<size_t>(what)]; }
    const std::atomic<uint64_t>& count(Milestone what) const {
      return progress[static_cast<size_t>(what)];
    }
  };

  alignas(64) std::atomic<int64_t> ends{0};
  // The rank states stand in memory behind this object.
  RankState& rank_state(int64_t index) { return reinterpret_cast<RankState*>(this + 1)[index]; }
  static size_t bytes(int64_t ranks) {
    return sizeof(GroupState) + cells(ranks, sizeof(RankState));
  }
};

class Group {
 public:
  static constexpr uint64_t kRing = GroupState::kRing;
  using RankState = GroupState::RankState;

  // members [size]: the rank in the domain of each rank of the group. state: shared by the ranks
  // that share memory with this one; these are all ranks unless the domain has an Outside.
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
  // Does the rank share memory with this one?
  bool is_here(int rank) const { return rank_states_[rank] != nullptr; }
  RankState& rank_state(int rank) { return *rank_states_[rank]; }
  const RankState& rank_state(int rank) const { return *rank_states_[rank]; }

  // Publishes that this rank has come to n, one more than before, and wakes the ranks that wait for
  // it.
  void advance(Milestone what, uint64_t n);
  // Which of the ranks that share memory has not come to n?
  Standing standing(Milestone what, uint64_t n) const;
  // This rank takes no further part.
  void leave() noexcept;

  // Calls `look` for a Standing. Returns true when all ranks are there. Throws CommError when a
  // rank is not there and never will be.
  template <class Look>
  bool reached(const char* operation, const Look& look) {
    return settled(look(), operation);
  }
  // Blocks until reached(), at most for the timeout of the domain. It spins where every rank has a
  // core, and otherwise lets peers have this core; then it sleeps.
  template <class Look>
  void wait(const char* operation, const Look& look) {
    if (reached(operation, look) || spin(look) || yield(look)) return;
    Nap nap(*this);
    while (!nap.over(look(), operation)) nap.sleep();
  }
  // The same for a counter of the ranks that share memory.
  bool reached(Milestone what, uint64_t n, const char* operation) {
    return reached(operation, [&] { return standing(what, n); });
  }
  void wait(Milestone what, uint64_t n, const char* operation) {
    wait(operation, [&] { return standing(what, n); });
  }

  // Fails the domain on behalf of this rank, which missed `peer`, and throws CommError.
  [[noreturn]] void fail(int peer, const char* operation, const std::string& what);
  // Throws CommError on this rank because the domain has failed already.
  [[noreturn]] void throw_failed(const char* operation);

 private:
  // One wait that sleeps: when it ends at the latest, and how long to sleep at a time.
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
    uint32_t wake_count_;
    std::chrono::steady_clock::time_point checked_;
    std::chrono::microseconds slice_;
  };

  bool settled(Standing now, const char* operation);
  template <class Look>
  bool spin(const Look& look) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < spins_; ++i) {
      if (look().missing < 0) return tune_spins(true);
      // Where other programs take the core, or MPI yields it, every look may take milliseconds.
      if (i % 16 == 15 && std::chrono::steady_clock::now() - begin > kLongestSpin) break;
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
  static constexpr std::chrono::milliseconds kLongestSpin{2};
  // Lets peers have this core. Returns whether this rank soon had it back; if not, the next waits
  // sleep at once.
  bool yield_core();
  bool tune_spins(bool right);
  static void pause();

  const std::shared_ptr<FailureDomain> domain_;
  const std::vector<int> members_;
  const std::vector<int32_t> hosts_;
  const int rank_;
  GroupState* const state_;
  std::vector<RankState*> rank_states_;  // [size] null: the rank is on another host
  std::vector<int> here_;                // the ranks that share memory with this one
  int spins_;                            // how often to look before sleeping
  int naps_before_yield_ = 0, naps_after_long_yield_ = 1;
};

}  // namespace trimtab
