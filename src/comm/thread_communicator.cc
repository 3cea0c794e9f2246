// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

static_assert(Board::kMaxAhead + 1 == Group::kRing);

// Marks this rank as reading its peers' memory.
class Reading {
 public:
  Reading(Group& group, int rank, const char* operation) : domain_(*group.domain()), member_(group.member(rank)) {
    if (!domain_.begin_read(member_)) group.throw_failed(rank, operation);
  }
  ~Reading() { domain_.end_read(member_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  FailureDomain& domain_;
  const int member_;
};

int64_t checked_sum(const char* operation, std::span<const int64_t> counts) {
  int64_t sum = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0 || __builtin_add_overflow(sum, counts[r], &sum)) {
      throw InvalidArgument(cat(operation, ": the count of rank ", r, " is ", counts[r]));
    }
  }
  return sum;
}

}  // namespace

uint64_t ThreadBoard::post(const void* item) {
  const uint64_t n = last_ + 1;
  // The ring's place was item n - kRing, which a peer may read until it has posted the one after that.
  if (n > Group::kRing) group_.wait(rank_, Milestone::kPosted, n - Group::kRing + 1, "board post");
  group_.seat(rank_).items[n % Group::kRing] = item;
  last_ = n;
  group_.advance(rank_, Milestone::kPosted, n);
  return n;
}

void ThreadBoard::begin_read() {
  if (!group_.domain()->begin_read(group_.member(rank_))) group_.throw_failed(rank_, "board");
}

void ThreadBoard::end_read() noexcept {
  group_.domain()->end_read(group_.member(rank_));
}

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<Group> group, int rank)
    : group_(std::move(group)), rank_(rank), board_(*group_, rank) {}

ThreadCommunicator::~ThreadCommunicator() {
  group_->leave(rank_);
}

void ThreadCommunicator::abort(const char* reason) noexcept {
  const int member = group_->member(rank_);
  group_->domain()->fail(member, member, reason);
}

void ThreadCommunicator::barrier() {
  done(start({}, {}), true);
}

Pending ThreadCommunicator::all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                                         std::span<int64_t> bytes_of_rank) {
  if (bytes_of_rank.size() != static_cast<size_t>(size())) {
    throw InvalidArgument(
        cat("all_gather_v: bytes_of_rank has ", bytes_of_rank.size(), " entries for ", size(), " ranks"));
  }
  return {this, start({Operation::Kind::kAllGather, send, {}}, {recv, bytes_of_rank, {}})};
}

Pending ThreadCommunicator::reduce_scatter_v(std::span<const float> send, std::span<const int64_t> counts,
                                             std::span<float> recv) {
  if (counts.size() != static_cast<size_t>(size())) {
    throw InvalidArgument(cat("reduce_scatter_v: ", counts.size(), " counts for ", size(), " ranks"));
  }
  const auto sum = static_cast<size_t>(checked_sum("reduce_scatter_v", counts));
  const auto own = static_cast<size_t>(counts[static_cast<size_t>(rank_)]);
  if (send.size() != sum || recv.size() != own) {
    throw InvalidArgument(cat("reduce_scatter_v on rank ", rank_, ": the counts ask for ", sum, " floats to send and ",
                              own, " to receive, got ", send.size(), " and ", recv.size()));
  }
  return {this, start({Operation::Kind::kReduceScatter, std::as_bytes(send), counts}, {{}, {}, recv})};
}

Pending ThreadCommunicator::all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                                         std::span<std::byte> recv, std::span<int64_t> recv_bytes) {
  if (send_bytes.size() != static_cast<size_t>(size()) || recv_bytes.size() != send_bytes.size()) {
    throw InvalidArgument(cat("all_to_all_v: send_bytes has ", send_bytes.size(), " entries and recv_bytes ",
                              recv_bytes.size(), " for ", size(), " ranks"));
  }
  const int64_t sum = checked_sum("all_to_all_v", send_bytes);
  if (std::ssize(send) != sum) {
    throw InvalidArgument(
        cat("all_to_all_v on rank ", rank_, ": send has ", send.size(), " bytes, the blocks have ", sum));
  }
  return {this, start({Operation::Kind::kAllToAll, send, send_bytes}, {recv, recv_bytes, {}})};
}

std::unique_ptr<Communicator> ThreadCommunicator::split(int color, int key) {
  struct Wish {
    int color, key;
  };
  const Wish wish{color, key};
  std::vector<Wish> wishes(static_cast<size_t>(size()));
  std::vector<int64_t> bytes(wishes.size());
  all_gather_v(std::as_bytes(std::span(&wish, 1)), std::as_writable_bytes(std::span(wishes)), bytes).wait();

  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (color >= 0 && wishes[static_cast<size_t>(r)].color == color) ranks.push_back(r);
  }
  std::ranges::sort(ranks, {}, [&](int r) { return std::pair(wishes[static_cast<size_t>(r)].key, r); });

  // The first rank makes the group. It hands it round in its seat, not on its stack: should a peer fail here, others
  // may still be taking their share.
  if (!ranks.empty() && ranks.front() == rank_) {
    std::vector<int> members;
    for (const int r : ranks) members.push_back(group_->member(r));
    group_->seat(rank_).offer = std::make_shared<Group>(group_->domain(), std::move(members));
  }
  barrier();
  std::unique_ptr<Communicator> end;
  if (!ranks.empty()) {
    const auto place = std::ranges::find(ranks, rank_) - ranks.begin();
    end = std::make_unique<ThreadCommunicator>(group_->seat(ranks.front()).offer, static_cast<int>(place));
  }
  barrier();
  group_->seat(rank_).offer = nullptr;
  return end;
}

bool ThreadCommunicator::done(uint64_t ticket, bool block) {
  while (completed_ < ticket) {
    const uint64_t next = completed_ + 1;
    const char* what = name(operation(rank_, next).kind);
    if (block) {
      group_->wait(rank_, Milestone::kStarted, next, what);
    } else if (!group_->reached(rank_, Milestone::kStarted, next, what)) {
      return false;
    }
    complete(next);
  }
  return true;
}

bool ThreadCommunicator::released(uint64_t ticket, bool block) {
  if (!done(ticket, block)) return false;
  const char* what = "release of a send buffer";
  if (!block) return group_->reached(rank_, Milestone::kCompleted, ticket, what);
  group_->wait(rank_, Milestone::kCompleted, ticket, what);
  return true;
}

uint64_t ThreadCommunicator::start(const Operation& operation, const Destination& destination) {
  if (started_ - completed_ >= kMaxInFlight) {
    throw InvalidArgument(cat(name(operation.kind), ": ", kMaxInFlight, " collectives are in flight already"));
  }
  const uint64_t ticket = started_ + 1;
  // The place in the ring belonged to a collective that slower peers may still be reading for.
  if (ticket > Group::kRing) {
    group_->wait(rank_, Milestone::kCompleted, ticket - Group::kRing, name(operation.kind));
  }
  group_->seat(rank_).operations[ticket % Group::kRing] = operation;
  destinations_[ticket % Group::kRing] = destination;
  started_ = ticket;
  group_->advance(rank_, Milestone::kStarted, ticket);
  return ticket;
}

const Operation& ThreadCommunicator::operation(int rank, uint64_t ticket) const {
  return group_->seat(rank).operations[ticket % Group::kRing];
}

void ThreadCommunicator::complete(uint64_t ticket) {
  const Operation& mine = operation(rank_, ticket);
  const Destination& destination = destinations_[ticket % Group::kRing];
  check_agreement(ticket);
  size_t missing_bytes = 0;
  if (mine.kind != Operation::Kind::kBarrier) {
    const Reading reading(*group_, rank_, name(mine.kind));
    if (mine.kind == Operation::Kind::kReduceScatter) {
      reduce(ticket, destination);
    } else {
      missing_bytes = gather(ticket, destination);
    }
  }
  completed_ = ticket;
  group_->advance(rank_, Milestone::kCompleted, ticket);
  if (missing_bytes > 0) {
    throw InvalidArgument(cat(name(mine.kind), " on rank ", rank_, ": recv has ", destination.bytes.size(), " bytes, ",
                              missing_bytes, " less than was sent"));
  }
}

void ThreadCommunicator::check_agreement(uint64_t ticket) {
  const Operation& mine = operation(rank_, ticket);
  std::string difference;
  {
    const Reading reading(*group_, rank_, name(mine.kind));
    for (int r = 0; r < size() && difference.empty(); ++r) {
      const Operation& other = operation(r, ticket);
      if (other.kind != mine.kind) {
        difference = cat("rank ", r, " is in ", name(other.kind));
      } else if (mine.kind == Operation::Kind::kReduceScatter && !std::ranges::equal(other.counts, mine.counts)) {
        difference = cat("rank ", r, " has other counts");
      }
    }
  }
  // Not under the Reading: two ranks that abort would wait for each other.
  if (difference.empty()) return;
  const std::string text = cat(name(mine.kind), " on rank ", rank_, ": ", difference);
  abort(text.c_str());
  throw InvalidArgument(text);
}

std::span<const std::byte> ThreadCommunicator::block_from(int sender, uint64_t ticket) const {
  const Operation& theirs = operation(sender, ticket);
  if (theirs.kind != Operation::Kind::kAllToAll) return theirs.send;
  const auto before = theirs.counts.first(static_cast<size_t>(rank_));
  const auto offset = std::accumulate(before.begin(), before.end(), int64_t{0});
  return theirs.send.subspan(static_cast<size_t>(offset), static_cast<size_t>(theirs.counts[before.size()]));
}

size_t ThreadCommunicator::gather(uint64_t ticket, const Destination& destination) const {
  size_t total = 0;
  for (int r = 0; r < size(); ++r) {
    const size_t bytes = block_from(r, ticket).size();
    destination.bytes_of_rank[static_cast<size_t>(r)] = static_cast<int64_t>(bytes);
    total += bytes;
  }
  if (total > destination.bytes.size()) return total - destination.bytes.size();
  std::byte* to = destination.bytes.data();
  for (int r = 0; r < size(); ++r) {
    const std::span<const std::byte> from = block_from(r, ticket);
    if (from.empty()) continue;  // memcpy from null is undefined even for no bytes
    std::memcpy(to, from.data(), from.size());
    to += from.size();
  }
  return 0;
}

void ThreadCommunicator::reduce(uint64_t ticket, const Destination& destination) const {
  size_t offset = 0;
  for (const int64_t count : operation(rank_, ticket).counts.first(static_cast<size_t>(rank_))) {
    offset += static_cast<size_t>(count);
  }
  float* __restrict sum = destination.sum.data();
  const size_t count = destination.sum.size();
  for (int r = 0; r < size(); ++r) {
    const auto* from = reinterpret_cast<const float*>(operation(r, ticket).send.data()) + offset;
    if (r == 0) {
      std::copy_n(from, count, sum);
    } else {
      for (size_t i = 0; i < count; ++i) sum[i] += from[i];
    }
  }
}

}  // namespace trimtab
