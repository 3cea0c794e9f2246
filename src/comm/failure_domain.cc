// SPDX-License-Identifier: Apache-2.0
#include "comm/failure_domain.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "base/cat.h"
#include "comm/futex.h"
#include "comm/group.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// Far enough to be "no timeout" and near enough for clock arithmetic not to overflow.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

int checked_ranks(int ranks) {
  if (ranks < 1) throw InvalidArgument(cat("a group needs at least 1 rank, got ", ranks));
  return ranks;
}

std::chrono::milliseconds checked_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0)
    throw InvalidArgument(cat("the timeout must be above 0 ms, got ", timeout.count()));
  return std::min(timeout, kLongestTimeout);
}

std::vector<int32_t> checked_hosts(const std::vector<int32_t>& hosts, int ranks) {
  if (hosts.empty()) return std::vector<int32_t>(ranks, 0);
  if (std::ssize(hosts) != ranks)
    throw InvalidArgument(cat("hosts of ", hosts.size(), " ranks for a group of ", ranks));
  return hosts;
}

// The number of ranks on the host that has most: the same answer on every rank.
int64_t most_on_a_host(const std::vector<int32_t>& hosts) {
  int64_t most = 0;
  for (const int32_t host : hosts) most = std::max(most, std::ranges::count(hosts, host));
  return most;
}

struct alignas(64) Member {
  std::atomic<int> reading{0};
  std::atomic<int> sleepers{0};
  std::atomic<uint32_t> wake_count{0};
};

}  // namespace

struct alignas(64) FailureDomain::State {
  enum Phase { kFine, kFailing, kFailed };

  std::atomic<int> phase{kFine};
  int culprit = 0;
  int blamed = 0;
  char reason[1024] = {};
  // The members stand in memory behind this object: [ranks].
  Member& member(size_t rank) { return reinterpret_cast<Member*>(this + 1)[rank]; }
};

size_t FailureDomain::state_bytes(int ranks) {
  static_assert(sizeof(State) % alignof(Member) == 0);
  return sizeof(State) + cells(checked_ranks(ranks), sizeof(Member));
}

FailureDomain::FailureDomain(int ranks, const GroupOptions& options)
    : timeout_(checked_timeout(options.timeout)),
      hosts_(checked_hosts(options.hosts, checked_ranks(ranks))),
      may_spin_(std::cmp_less_equal(ranks, std::thread::hardware_concurrency())),
      memory_(std::make_shared<ProcessMemory>()),
      kept_(state_bytes(ranks)),
      state_(kept_.as<State>()) {}

FailureDomain::FailureDomain(int ranks, const GroupOptions& options,
                             std::shared_ptr<SharedMemory> memory, Buffer kept, void* state)
    : timeout_(checked_timeout(options.timeout)),
      hosts_(checked_hosts(options.hosts, checked_ranks(ranks))),
      may_spin_(std::cmp_less_equal(most_on_a_host(hosts_), std::thread::hardware_concurrency())),
      memory_(std::move(memory)),
      kept_(std::move(kept)),
      state_(static_cast<State*>(state)) {}

FailureDomain::~FailureDomain() {
  memory_->close();
}

bool FailureDomain::failed() const {
  return state().phase == State::kFailed;
}
int FailureDomain::culprit() const {
  return state().culprit;
}
int FailureDomain::blamed() const {
  return state().blamed;
}
const char* FailureDomain::reason() const {
  return state().reason;
}

void FailureDomain::fail(int rank, int blamed, const char* reason, bool tell_outside) noexcept {
  int fine = State::kFine;
  if (state().phase.compare_exchange_strong(fine, State::kFailing)) {
    state().culprit = rank;
    state().blamed = blamed;
    std::strncpy(state().reason, reason, sizeof state().reason - 1);
    state().phase = State::kFailed;
    for (int r = 0; r < ranks(); ++r) wake(r);
    if (outside_ != nullptr && tell_outside) outside_->tell_failed(rank, blamed, reason);
  }
  // Another rank is writing the reason, and may die in the middle of it: it is given a second.
  for (int i = 0; state().phase != State::kFailed && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  state().phase = State::kFailed;
  // Messages of other hosts may still be on their way into memory of this host.
  if (outside_ != nullptr) memory_->close();
  wait_for_readers(rank);
}

// No peer begins to read any more. Copies that have begun wait for nobody and end soon, unless
// their process is stopped.
void FailureDomain::wait_for_readers(int rank) noexcept {
  constexpr auto kSpinning = std::chrono::milliseconds(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto patience = std::max<std::chrono::milliseconds>(timeout_, memory_->least_patience());
  for (int r = 0; r < ranks(); ++r) {
    while (r != rank && state().member(r).reading > 0 && memory_->alive(r)) {
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (waited >= patience) return memory_->close();
      if (waited < kSpinning) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }
}

bool FailureDomain::begin_read(int rank) noexcept {
  // First the mark, then the look; fail() does it the other way round. One of the two sees the
  // other (seq_cst).
  ++state().member(rank).reading;
  if (state().phase == State::kFine) return true;
  end_read(rank);
  return false;
}

void FailureDomain::end_read(int rank) noexcept {
  --state().member(rank).reading;
}

FailureDomain::Sleeper::Sleeper(FailureDomain& domain, int rank)
    : state_(domain.state()), rank_(rank) {
  ++state_.member(rank_).sleepers;
}
FailureDomain::Sleeper::~Sleeper() {
  --state_.member(rank_).sleepers;
}
uint32_t FailureDomain::Sleeper::wake_count() const {
  return state_.member(rank_).wake_count;
}
void FailureDomain::Sleeper::sleep(uint32_t wake_count, std::chrono::nanoseconds timeout) const {
  futex_wait(state_.member(rank_).wake_count, wake_count, timeout);
}

bool FailureDomain::sleeps(int rank) const noexcept {
  return state().member(rank).sleepers > 0;
}

void FailureDomain::wake(int rank) noexcept {
  if (!sleeps(rank)) return;
  std::atomic<uint32_t>& count = state().member(rank).wake_count;
  ++count;
  futex_wake_all(count);
}

GroupState* FailureDomain::make_group(int64_t ends) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const Buffer& group) { return group.as<GroupState>()->ends == 0; });
  groups_.push_back(memory_->allocate(GroupState::bytes(ends)));
  auto* group = new (groups_.back().data()) GroupState;
  group->ends = ends;
  for (int64_t r = 0; r < ends; ++r) new (&group->rank_state(r)) GroupState::RankState;
  return group;
}

}  // namespace trimtab
