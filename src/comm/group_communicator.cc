// SPDX-License-Identifier: Apache-2.0
#include "comm/group_communicator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

static_assert(Board::kMaxAhead + 1 == Group::kRing);

// Marks this rank as reading its peers' memory.
class Reading {
 public:
  Reading(Group& group, const char* operation) : domain_(*group.domain()), member_(group.member()) {
    if (!domain_.begin_read(member_)) group.throw_failed(operation);
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

void copy(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty())
    std::memcpy(to, from.data(), from.size());  // from null it is undefined even for no bytes
}

}  // namespace

uint64_t GroupBoard::post(const void* item) {
  const uint64_t n = last_ + 1;
  // The place in the ring held item n - kRing, which a peer may read until it has posted the item
  // after that.
  if (n > Group::kRing) group_.wait(Milestone::kPosted, n - Group::kRing + 1, "board post");
  group_.rank_state(group_.rank()).items[n % Group::kRing] = item;
  last_ = n;
  group_.advance(Milestone::kPosted, n);
  return n;
}

void GroupBoard::begin_read() {
  if (!group_.domain()->begin_read(group_.member())) group_.throw_failed("board");
}

void GroupBoard::end_read() noexcept {
  group_.domain()->end_read(group_.member());
}

GroupCommunicator::GroupCommunicator(std::shared_ptr<FailureDomain> domain,
                                     std::vector<int> members, int rank, GroupState* state,
                                     int64_t number)
    : group_(std::move(domain), std::move(members), rank, state),
      board_(group_),
      into_(group_.size()) {
  std::vector<bool> here;
  for (int r = 0; r < size(); ++r) here.push_back(group_.is_here(r));
  if (std::ranges::find(here, false) != here.end()) {
    outside_ = group_.domain()->outside()->peers(group_.members(), rank, std::move(here), number);
  }
}

GroupCommunicator::~GroupCommunicator() {
  if (outside_ != nullptr) outside_->leave();
  group_.leave();
}

void GroupCommunicator::abort(const char* reason) noexcept {
  group_.domain()->fail(group_.member(), group_.member(), reason);
}

void GroupCommunicator::barrier() {
  done(start({}, {}), true);
}

Pending GroupCommunicator::all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                                        std::span<int64_t> bytes_of_rank) {
  if (std::ssize(bytes_of_rank) != size()) {
    throw InvalidArgument(cat("all_gather_v: bytes_of_rank has ", bytes_of_rank.size(),
                              " entries for ", size(), " ranks"));
  }
  return {this, start({Operation::Kind::kAllGather, send, {}}, {recv, bytes_of_rank, {}})};
}

Pending GroupCommunicator::reduce_scatter_v(std::span<const float> send,
                                            std::span<const int64_t> counts,
                                            std::span<float> recv) {
  if (std::ssize(counts) != size()) {
    throw InvalidArgument(
        cat("reduce_scatter_v: ", counts.size(), " counts for ", size(), " ranks"));
  }
  const int64_t sum = checked_sum("reduce_scatter_v", counts), own = counts[rank()];
  if (std::ssize(send) != sum || std::ssize(recv) != own) {
    throw InvalidArgument(cat("reduce_scatter_v on rank ", rank(), ": the counts ask for ", sum,
                              " floats to send and ", own, " to receive, got ", send.size(),
                              " and ", recv.size()));
  }
  return {this,
          start({Operation::Kind::kReduceScatter, std::as_bytes(send), counts}, {{}, {}, recv})};
}

Pending GroupCommunicator::all_to_all_v(std::span<const std::byte> send,
                                        std::span<const int64_t> send_bytes,
                                        std::span<std::byte> recv, std::span<int64_t> recv_bytes) {
  if (std::ssize(send_bytes) != size() || recv_bytes.size() != send_bytes.size()) {
    throw InvalidArgument(cat("all_to_all_v: send_bytes has ", send_bytes.size(),
                              " entries and recv_bytes ", recv_bytes.size(), " for ", size(),
                              " ranks"));
  }
  const int64_t sum = checked_sum("all_to_all_v", send_bytes);
  if (std::ssize(send) != sum) {
    throw InvalidArgument(cat("all_to_all_v on rank ", rank(), ": send has ", send.size(),
                              " bytes, the blocks have ", sum));
  }
  return {this, start({Operation::Kind::kAllToAll, send, send_bytes}, {recv, recv_bytes, {}})};
}

std::unique_ptr<Communicator> GroupCommunicator::split(int color, int key) {
  struct Wish {
    int64_t number;
    int color, key;
  };
  FailureDomain& domain = *group_.domain();
  const Wish wish{domain.next_number(), color, key};
  std::vector<Wish> wishes(size());
  std::vector<int64_t> bytes(wishes.size());
  all_gather_v(std::as_bytes(std::span(&wish, 1)), std::as_writable_bytes(std::span(wishes)), bytes)
      .wait();
  const int64_t number = std::ranges::max_element(wishes, {}, &Wish::number)->number;
  domain.set_next_number(number + 1);

  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (color >= 0 && wishes[r].color == color) ranks.push_back(r);
  }
  std::ranges::sort(ranks, {}, [&](int r) { return std::pair(wishes[r].key, r); });
  std::vector<int> members, here;
  for (const int r : ranks) members.push_back(group_.members()[r]);
  std::ranges::copy_if(ranks, std::back_inserter(here),
                       [this](int r) { return group_.is_here(r); });

  // The first rank makes the state. It offers it in shared memory and not on its stack: should a
  // peer fail here, others may still be reading the offer.
  if (!here.empty() && here.front() == rank()) {
    group_.rank_state(rank()).offer = domain.make_group(std::ssize(here));
  }
  barrier();
  std::unique_ptr<Communicator> end;
  if (!ranks.empty()) {
    const auto place = std::ranges::find(ranks, rank()) - ranks.begin();
    end = std::make_unique<GroupCommunicator>(group_.domain(), std::move(members),
                                              static_cast<int>(place),
                                              group_.rank_state(here.front()).offer, number);
  }
  barrier();
  return end;
}

template <class Look>
bool GroupCommunicator::reached(const char* what, bool block, const Look& look) {
  if (!block) return group_.reached(what, look);
  group_.wait(what, look);
  return true;
}

bool GroupCommunicator::done(uint64_t ticket, bool block) {
  while (completed_ < ticket) {
    const uint64_t next = completed_ + 1;
    const char* what = name(operation(rank(), next).kind);
    if (outside_ != nullptr) group_.domain()->outside()->poll();
    if (!has_begun_) {
      const bool all_started = reached(what, block, [&] {
        const Standing here = group_.standing(Milestone::kStarted, next);
        return here.missing < 0 && outside_ != nullptr ? outside_->standing(next) : here;
      });
      if (!all_started) return false;
      begin_to_complete(next);
    }
    if (outside_ != nullptr && !reached(what, block, [&] { return outside_->receiving(); }))
      return false;
    complete(next);
  }
  return true;
}

bool GroupCommunicator::released(uint64_t ticket, bool block) {
  if (!done(ticket, block)) return false;
  return reached("release of a send buffer", block, [&] {
    const Standing here = group_.standing(Milestone::kCompleted, ticket);
    return here.missing < 0 && outside_ != nullptr ? outside_->sending(ticket) : here;
  });
}

uint64_t GroupCommunicator::start(const Operation& operation, const Destination& destination) {
  if (started_ - completed_ >= kMaxInFlight) {
    throw InvalidArgument(
        cat(name(operation.kind), ": ", kMaxInFlight, " collectives are in flight already"));
  }
  const uint64_t ticket = started_ + 1;
  const size_t place = ticket % Group::kRing;
  // The place in the ring held an earlier collective that slower peers may still be reading.
  if (ticket > Group::kRing) released(ticket - Group::kRing, true);
  const Operation& published = group_.rank_state(rank()).operations[place] =
      shared(operation, staging_[place]);
  destinations_[place] = destination;
  started_ = ticket;
  count(published);
  if (outside_ != nullptr) outside_->start(ticket, published);
  group_.advance(Milestone::kStarted, ticket);
  return ticket;
}

void GroupCommunicator::count(const Operation& operation) {
  const std::vector<int32_t>& hosts = group_.hosts();
  // Of an all-gather each rank gets all, of the others a block whose length the counts say.
  const bool in_blocks = !operation.counts.empty();
  const int64_t unit = operation.kind == Operation::Kind::kReduceScatter ? sizeof(float) : 1;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const int64_t bytes = in_blocks ? operation.counts[r] * unit : std::ssize(operation.send);
    sent_.to_ranks += bytes;
    if (hosts[r] != hosts[rank()]) sent_.to_hosts += bytes;
  }
}

// The operation over memory that the ranks of this host can read.
Operation GroupCommunicator::shared(const Operation& operation, Buffer& staging) const {
  SharedMemory& memory = group_.domain()->memory();
  if (memory.shares(operation.send.data(), operation.send.size()) &&
      memory.shares(operation.counts.data(), operation.counts.size_bytes())) {
    return operation;
  }
  const size_t counts_bytes = operation.counts.size_bytes();
  const size_t bytes = counts_bytes + operation.send.size();
  if (staging.bytes() < bytes) {
    staging = {};
    staging =
        memory.allocate(bytes + bytes / 2);  // more than is needed, for sizes that grow slowly
  }
  copy(std::as_bytes(operation.counts), staging.data());
  copy(operation.send, staging.data() + counts_bytes);
  return {operation.kind,
          {staging.data() + counts_bytes, operation.send.size()},
          {staging.as<const int64_t>(), operation.counts.size()}};
}

const Operation& GroupCommunicator::operation(int rank, uint64_t ticket) const {
  return group_.rank_state(rank).operations[ticket % Group::kRing];
}

void GroupCommunicator::begin_to_complete(uint64_t ticket) {
  check_agreement(ticket);
  const Operation& mine = operation(rank(), ticket);
  const Destination& destination = destinations_[ticket % Group::kRing];
  missing_bytes_ = 0;
  if (mine.kind != Operation::Kind::kBarrier) {
    const Reading reading(group_, name(mine.kind));
    int64_t total = 0, outside = 0;
    for (int r = 0; r < size(); ++r) {
      const int64_t bytes = block_bytes(r, ticket);
      if (!destination.bytes_of_rank.empty()) destination.bytes_of_rank[r] = bytes;
      total += bytes;
      if (!group_.is_here(r)) outside += bytes;
    }
    const bool sums = mine.kind == Operation::Kind::kReduceScatter;
    if (!sums) missing_bytes_ = std::max<int64_t>(0, total - std::ssize(destination.bytes));
    const bool aside = sums || missing_bytes_ > 0;
    if (aside && std::cmp_less(scratch_.bytes(), outside)) {
      scratch_ = {};
      scratch_ = group_.domain()->memory().allocate(cells(outside + outside / 2));
    }
    std::byte* to = aside ? scratch_.data() : destination.bytes.data();
    for (int r = 0; r < size(); ++r) {
      if (aside && group_.is_here(r)) continue;
      const int64_t bytes = block_bytes(r, ticket);
      into_[r] = {to, cells(bytes)};
      to += bytes;
    }
  }
  if (outside_ != nullptr && mine.kind != Operation::Kind::kBarrier) {
    for (int r = 0; r < size(); ++r) {
      if (!group_.is_here(r)) outside_->receive(r, into_[r]);
    }
  }
  has_begun_ = true;
}

void GroupCommunicator::complete(uint64_t ticket) {
  const Operation& mine = operation(rank(), ticket);
  const Destination& destination = destinations_[ticket % Group::kRing];
  if (mine.kind != Operation::Kind::kBarrier && missing_bytes_ == 0) {
    const Reading reading(group_, name(mine.kind));
    if (mine.kind == Operation::Kind::kReduceScatter) {
      reduce(ticket, destination.sum);
    } else {
      gather(ticket);
    }
  }
  // A rank that was stopped while it read may have read memory that was written since.
  if (group_.domain()->failed()) group_.throw_failed(name(mine.kind));
  has_begun_ = false;
  completed_ = ticket;
  group_.advance(Milestone::kCompleted, ticket);
  if (missing_bytes_ > 0) {
    throw InvalidArgument(cat(name(mine.kind), " on rank ", rank(), ": recv has ",
                              destination.bytes.size(), " bytes, ", missing_bytes_,
                              " less than was sent"));
  }
}

void GroupCommunicator::check_agreement(uint64_t ticket) {
  const char* what = name(operation(rank(), ticket).kind);
  std::string text;
  {
    const Reading reading(group_, what);
    text = difference(ticket);
  }
  // Not under the Reading: two ranks that abort would wait for each other.
  if (text.empty()) return;
  text = cat(what, " on rank ", rank(), ": ", text);
  abort(text.c_str());
  throw InvalidArgument(text);
}

std::string GroupCommunicator::difference(uint64_t ticket) const {
  const Operation& mine = operation(rank(), ticket);
  const bool sums = mine.kind == Operation::Kind::kReduceScatter;
  for (int r = 0; r < size(); ++r) {
    Operation::Kind kind = mine.kind;
    bool same_counts = true;
    if (group_.is_here(r)) {
      kind = operation(r, ticket).kind;
      same_counts = !sums || std::ranges::equal(operation(r, ticket).counts, mine.counts);
    } else {
      const OutsidePeers::Announcement theirs = outside_->announcement(r, ticket);
      kind = static_cast<Operation::Kind>(theirs.kind);
      same_counts = !sums || theirs.checksum == mine.checksum();
    }
    if (kind != mine.kind) return cat("rank ", r, " is in ", name(kind));
    if (!same_counts) return cat("rank ", r, " has other counts");
  }
  return "";
}

int64_t GroupCommunicator::block_bytes(int sender, uint64_t ticket) const {
  return group_.is_here(sender) ? std::ssize(operation(sender, ticket).block_for(rank()))
                                : outside_->announcement(sender, ticket).bytes;
}

void GroupCommunicator::gather(uint64_t ticket) {
  for (int r = 0; r < size(); ++r) {
    if (group_.is_here(r)) copy(operation(r, ticket).block_for(rank()), into_[r].data());
  }
}

void GroupCommunicator::reduce(uint64_t ticket, std::span<float> sums) {
  float* __restrict sum = sums.data();
  for (int r = 0; r < size(); ++r) {
    const std::span<const std::byte> block = group_.is_here(r)
                                                 ? operation(r, ticket).block_for(rank())
                                                 : std::span<const std::byte>(into_[r]);
    const auto* from = reinterpret_cast<const float*>(block.data());
    if (r == 0) {
      std::copy_n(from, sums.size(), sum);
    } else {
      for (size_t i = 0; i < sums.size(); ++i) sum[i] += from[i];
    }
  }
}

}  // namespace trimtab
