// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::chrono::steady_clock;

// A sleep and a wake-up cost 5 to 50 us; one round of spinning takes about 20 ns a rank. A rank for
// which spinning paid may spin longer the next time; one for which it did not gives up sooner.
constexpr int kMinSpins = 8;
constexpr int kMaxSpins = 512;
// Ranks that share cores can yield them to each other without sleeping, which saves the wake-ups:
// 0.10 ms for a round trip of 4 ranks on 2 idle cores instead of 0.15. But other programs may take
// a core that is yielded for milliseconds, and a peer can't wake a rank that has yielded. If that
// happens, the next kMinNaps waits sleep, and more of them if it happens again.
constexpr std::chrono::microseconds kLongYield{200};
constexpr int kMinNaps = 64, kMaxNaps = 512;
// How often a rank that waits for a process checks that the process is still there.
constexpr std::chrono::milliseconds kCheckProcesses{100};
// A message from another host wakes nobody. A rank that waits for one looks again after the first
// of these times, and after longer ones up to the second.
constexpr std::chrono::microseconds kFirstNap{20}, kLongestNap{500};

std::vector<int32_t> number_hosts(const FailureDomain& domain, const std::vector<int>& members) {
  std::vector<int32_t> numbers, seen;
  for (const int member : members) {
    const auto at = std::ranges::find(seen, domain.host(member));
    numbers.push_back(static_cast<int32_t>(at - seen.begin()));
    if (at == seen.end()) seen.push_back(domain.host(member));
  }
  return numbers;
}

}  // namespace

const char* name(Operation::Kind kind) {
  switch (kind) {
    case Operation::Kind::kBarrier:
      return "barrier";
    case Operation::Kind::kAllGather:
      return "all_gather_v";
    case Operation::Kind::kReduceScatter:
      return "reduce_scatter_v";
    case Operation::Kind::kAllToAll:
      return "all_to_all_v";
  }
  return "unknown operation";
}

std::span<const std::byte> Operation::block_for(int rank) const {
  if (kind != Kind::kAllToAll && kind != Kind::kReduceScatter) return send;
  const size_t unit = kind == Kind::kReduceScatter ? sizeof(float) : 1;
  const auto before = counts.first(rank);
  const int64_t offset = std::accumulate(before.begin(), before.end(), int64_t{0});
  return send.subspan(cells(offset, unit), cells(counts[rank], unit));
}

uint64_t Operation::checksum() const {
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const std::byte byte : std::as_bytes(counts))
    hash = (hash ^ std::to_integer<uint64_t>(byte)) * 1099511628211U;
  return hash;
}

Group::Group(std::shared_ptr<FailureDomain> domain, std::vector<int> members, int rank,
             GroupState* state)
    : domain_(std::move(domain)),
      members_(std::move(members)),
      hosts_(number_hosts(*domain_, members_)),
      rank_(rank),
      state_(state),
      rank_states_(members_.size()),
      spins_(domain_->may_spin() ? kMaxSpins : 0) {
  for (int r = 0; r < size(); ++r) {
    if (domain_->outside() != nullptr && hosts_[r] != hosts_[rank]) continue;
    rank_states_[r] = &state->rank_state(std::ssize(here_));
    here_.push_back(r);
  }
}

Group::~Group() {
  --state_->ends;
}

bool Group::on_one_host() const {
  return std::ranges::all_of(hosts_, [](int32_t host) { return host == 0; });
}

void Group::advance(Milestone what, uint64_t n) {
  // Store, then look for sleepers; a sleeper registers, then looks at the counters. Both orders are
  // seq_cst, so one of the two sees the other. The last rank that comes to n sees all others there:
  // it alone has to wake anybody.
  rank_state(rank_).count(what) = n;
  const bool anybody =
      std::ranges::any_of(here_, [&](int r) { return domain_->sleeps(members_[r]); });
  if (!anybody || standing(what, n).missing >= 0) return;
  for (const int r : here_) domain_->wake(members_[r]);
}

Standing Group::standing(Milestone what, uint64_t n) const {
  Standing found;
  const auto behind = [&](int r) { return rank_state(r).count(what) < n; };
  for (const int r : here_) {
    if (!behind(r)) continue;
    // A rank may come to n and leave between the two looks; what it did before leaving counts.
    if (rank_state(r).left) {
      if (behind(r)) return {r, true};
      continue;
    }
    if (found.missing < 0) found.missing = r;
  }
  return found;
}

void Group::leave() noexcept {
  rank_state(rank_).left = true;
  for (const int r : here_) domain_->wake(members_[r]);
}

bool Group::settled(Standing now, const char* operation) {
  if (now.missing < 0) return true;
  // A rank of another host that fails says so before it leaves, so both may have come just now.
  if (now.left && domain_->outside() != nullptr) domain_->outside()->poll();
  if (domain_->failed()) throw_failed(operation);
  if (now.left) fail(now.missing, operation, "has left the group");
  return false;
}

void Group::fail(int peer, const char* operation, const std::string& what) {
  const CommError error(rank_, peer, operation, what);
  domain_->fail(member(), members_[peer], error.what());
  throw error;
}

void Group::throw_failed(const char* operation) {
  // fail() also waits for the readers of this rank's memory, which may be freed when the exception
  // passes.
  domain_->fail(member(), member(), "");
  const auto blamed = std::ranges::find(members_, domain_->blamed());
  const int peer = blamed == members_.end() ? -1 : static_cast<int>(blamed - members_.begin());
  throw CommError(rank_, peer, operation, cat("failed: ", domain_->reason()));
}

bool Group::tune_spins(bool right) {
  spins_ = right ? std::min(2 * spins_, kMaxSpins) : std::max(spins_ / 2, kMinSpins);
  return right;
}

bool Group::yield_core() {
  const auto begin = steady_clock::now();
  std::this_thread::yield();
  if (steady_clock::now() - begin < kLongYield) {
    naps_after_long_yield_ = std::max(kMinNaps, naps_after_long_yield_ * 7 / 8);
    return true;
  }
  naps_before_yield_ = naps_after_long_yield_;
  naps_after_long_yield_ = std::min(4 * naps_after_long_yield_, kMaxNaps);
  return false;
}

void Group::pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Group::Nap::Nap(Group& group)
    : group_(group),
      end_(steady_clock::now() + group.domain_->timeout()),
      sleeper_(*group.domain_, group.member()),
      wake_count_(sleeper_.wake_count()),
      checked_(steady_clock::now()),
      slice_(kFirstNap) {}

bool Group::Nap::over(Standing now, const char* operation) {
  if (group_.settled(now, operation)) return true;
  const auto time = steady_clock::now();
  if (time - checked_ >= kCheckProcesses) {
    checked_ = time;
    if (!group_.domain_->memory().alive(group_.members_[now.missing])) {
      group_.fail(now.missing, operation, "its process has ended");
    }
  }
  if (time >= end_) {
    group_.fail(now.missing, operation,
                cat("did not come within ", group_.domain_->timeout().count(), " ms"));
  }
  return false;
}

void Group::Nap::sleep() {
  // over() has looked after the count was read: had a peer come since, the count would be higher.
  std::chrono::nanoseconds longest =
      std::min<std::chrono::nanoseconds>(end_ - steady_clock::now(), kCheckProcesses);
  if (Outside* outside = group_.domain_->outside(); outside != nullptr) {
    longest = std::min<std::chrono::nanoseconds>(longest, slice_);
    slice_ = std::min(2 * slice_, kLongestNap);
    sleeper_.sleep(wake_count_, longest);
    outside->poll();
  } else {
    sleeper_.sleep(wake_count_, longest);
  }
  wake_count_ = sleeper_.wake_count();
}

}  // namespace trimtab
