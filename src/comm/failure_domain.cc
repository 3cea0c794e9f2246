// SPDX-License-Identifier: Apache-2.0
#include "comm/failure_domain.h"

#include <algorithm>
#include <thread>

#include "base/cat.h"
#include "comm/group.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Far enough to be "no timeout" and near enough for clock arithmetic not to overflow.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

size_t checked_ranks(int ranks) {
  if (ranks < 1) throw InvalidArgument(cat("a group needs at least 1 rank, got ", ranks));
  return static_cast<size_t>(ranks);
}

std::chrono::milliseconds checked_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) throw InvalidArgument(cat("the timeout must be above 0 ms, got ", timeout.count()));
  return std::min(timeout, kLongestTimeout);
}

std::vector<int32_t> checked_hosts(const std::vector<int32_t>& hosts, size_t ranks) {
  if (hosts.empty()) return std::vector<int32_t>(ranks, 0);
  if (hosts.size() != ranks) throw InvalidArgument(cat("hosts of ", hosts.size(), " ranks for a group of ", ranks));
  return hosts;
}

}  // namespace

FailureDomain::FailureDomain(int ranks, const GroupOptions& options)
    : timeout_(checked_timeout(options.timeout)),
      may_spin_(checked_ranks(ranks) <= std::thread::hardware_concurrency()),
      hosts_(checked_hosts(options.hosts, checked_ranks(ranks))),
      readers_(checked_ranks(ranks)) {}

void FailureDomain::fail(int rank, int blamed, const char* reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!failed_) {
      culprit_ = rank;
      blamed_ = blamed;
      try {
        reason_ = reason;
      } catch (...) {  // out of memory: the failure counts, the text is lost
      }
      failed_ = true;
      for (Group* group : groups_) group->wake();
    }
  }
  // No peer begins to read any more; copies that have begun end soon and wait for nobody.
  for (size_t r = 0; r < readers_.size(); ++r) {
    while (static_cast<int>(r) != rank && readers_[r].depth > 0) std::this_thread::yield();
  }
}

bool FailureDomain::begin_read(int rank) noexcept {
  // First the mark, then the look; fail() does it the other way round. One of the two sees the other (seq_cst).
  ++readers_[static_cast<size_t>(rank)].depth;
  if (!failed_) return true;
  end_read(rank);
  return false;
}

void FailureDomain::end_read(int rank) noexcept {
  --readers_[static_cast<size_t>(rank)].depth;
}

void FailureDomain::enroll(Group* group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void FailureDomain::withdraw(Group* group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

}  // namespace trimtab
