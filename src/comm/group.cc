// SPDX-License-Identifier: Apache-2.0
#include "comm/group.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// A sleep and a wake-up cost 5 to 50 us; one round of spinning is about 20 ns a rank. A rank that was right to spin may
// do so for longer the next time, one that was not gives up sooner.
constexpr int kMinSpins = 8;
constexpr int kMaxSpins = 512;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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

Group::Group(std::shared_ptr<FailureDomain> domain, std::vector<int> members)
    : domain_(std::move(domain)),
      members_(std::move(members)),
      hosts_(number_hosts(*domain_, members_)),
      seats_(members_.size()) {
  for (Seat& seat : seats_) seat.spins = domain_->may_spin() ? kMaxSpins : 0;
  domain_->enroll(this);
}

Group::~Group() {
  domain_->withdraw(this);
}

bool Group::shares_memory() const {
  return std::ranges::all_of(hosts_, [](int32_t host) { return host == 0; });
}

void Group::advance(int rank, Milestone what, uint64_t n) {
  // Store, then look for waiters; wait() registers, then looks at the counters. Both orders are seq_cst, so one of the
  // two sees the other. The last rank that comes to n sees all others there: it alone has to wake anybody.
  seat(rank).progress[static_cast<size_t>(what)] = n;
  if (waiters_ > 0 && standing(what, n).missing < 0) wake();
}

bool Group::reached(int rank, Milestone what, uint64_t n, const char* operation) {
  const Standing now = standing(what, n);
  if (now.missing < 0) return true;
  if (now.left || domain_->failed()) throw_missing(rank, now, operation);
  return false;
}

void Group::wait(int rank, Milestone what, uint64_t n, const char* operation) {
  if (reached(rank, what, n, operation) || spin(seat(rank), what, n)) return;
  Standing now;
  {
    std::unique_lock lock(mutex_);
    ++waiters_;
    wake_.wait_for(lock, domain_->timeout(), [&] {
      now = standing(what, n);
      return now.missing < 0 || now.left || domain_->failed();
    });
    --waiters_;
  }
  if (now.missing >= 0) throw_missing(rank, now, operation);
}

void Group::leave(int rank) noexcept {
  seat(rank).left = true;
  if (waiters_ > 0) wake();
}

void Group::wake() noexcept {
  // A waiter is either before its look at the counters, which then sees the news, or asleep.
  {
    const std::lock_guard lock(mutex_);
  }
  wake_.notify_all();
}

void Group::fail(int rank, int peer, const char* operation, const std::string& what) {
  const CommError error(rank, peer, operation, what);
  domain_->fail(member(rank), member(peer), error.what());
  throw error;
}

void Group::throw_failed(int rank, const char* operation) {
  // Waits for this rank's readers too: its buffers go when the exception passes.
  domain_->fail(member(rank), member(rank), "");
  const auto blamed = std::ranges::find(members_, domain_->blamed());
  const int peer = blamed == members_.end() ? -1 : static_cast<int>(blamed - members_.begin());
  throw CommError(rank, peer, operation, cat("failed: ", domain_->reason()));
}

Group::Standing Group::standing(Milestone what, uint64_t n) const {
  Standing found;
  for (size_t r = 0; r < seats_.size(); ++r) {
    if (progress(r, what) >= n) continue;
    // A rank may come to n and leave between the two looks; what it did before leaving counts.
    if (seats_[r].left) {
      if (progress(r, what) >= n) continue;
      return {static_cast<int>(r), true};
    }
    if (found.missing < 0) found.missing = static_cast<int>(r);
  }
  return found;
}

bool Group::spin(Seat& seat, Milestone what, uint64_t n) const {
  for (int i = 0; i < seat.spins; ++i) {
    if (standing(what, n).missing < 0) {
      seat.spins = std::min(2 * seat.spins, kMaxSpins);
      return true;
    }
    pause_cpu();
  }
  if (seat.spins > 0) seat.spins = std::max(seat.spins / 2, kMinSpins);
  return false;
}

void Group::throw_missing(int rank, Standing now, const char* operation) {
  if (domain_->failed()) throw_failed(rank, operation);
  if (now.left) fail(rank, now.missing, operation, "has left the group");
  fail(rank, now.missing, operation, cat("did not come within ", domain_->timeout().count(), " ms"));
}

}  // namespace trimtab
