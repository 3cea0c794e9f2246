// SPDX-License-Identifier: Apache-2.0
// A rank's end of a group of threads, of processes on one host, or of processes on several hosts.
// Within a host nothing is sent: a rank publishes where its data is, and each receiver reads it
// there when it completes the operation. Between hosts the Outside carries the data. Data in memory
// that peers can't read is first copied to memory that they can read.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "trimtab/communicator.h"

namespace trimtab {

// The board of a group: each rank has a ring of pointers to its latest items.
class GroupBoard final : public Board {
 public:
  explicit GroupBoard(Group& group) : group_(group) {}

  uint64_t post(const void* item) override;
  bool posted(uint64_t n) override { return group_.reached(Milestone::kPosted, n, "board"); }
  void wait_posted(uint64_t n, const char* operation) override {
    group_.wait(Milestone::kPosted, n, operation);
  }
  const void* item(int rank, uint64_t n) const override {
    return group_.rank_state(rank).items[n % Group::kRing];
  }
  bool shares(const void* memory, size_t bytes) const override {
    return group_.domain()->memory().shares(memory, bytes);
  }

 private:
  void begin_read() override;
  void end_read() noexcept override;

  Group& group_;
  uint64_t last_ = 0;
};

class GroupCommunicator final : public Communicator {
 public:
  // number: the number of the group, see Outside::peers; needed where the domain has an Outside.
  GroupCommunicator(std::shared_ptr<FailureDomain> domain, std::vector<int> members, int rank,
                    GroupState* state, int64_t number = 0);
  ~GroupCommunicator() override;
  GroupCommunicator(const GroupCommunicator&) = delete;
  GroupCommunicator& operator=(const GroupCommunicator&) = delete;

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::span<const int32_t> hosts() const override { return group_.hosts(); }
  SentBytes sent() const override { return sent_; }
  void barrier() override;
  Pending all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<int64_t> bytes_of_rank) override;
  Pending reduce_scatter_v(std::span<const float> send, std::span<const int64_t> counts,
                           std::span<float> recv) override;
  Pending all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                       std::span<std::byte> recv, std::span<int64_t> recv_bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Board* board() override { return group_.on_one_host() ? &board_ : nullptr; }
  Buffer allocate(size_t bytes) override { return group_.domain()->memory().allocate(bytes); }
  void abort(const char* reason) noexcept override;

 private:
  // Where this rank puts the result of a collective.
  struct Destination {
    std::span<std::byte> bytes;
    std::span<int64_t> bytes_of_rank;
    std::span<float> sum;
  };
  static_assert(Group::kRing >= kMaxInFlight);

  bool done(uint64_t ticket, bool block) override;
  bool released(uint64_t ticket, bool block) override;

  uint64_t start(const Operation& operation, const Destination& destination);
  void count(const Operation& operation);
  Operation shared(const Operation& operation, Buffer& staging) const;
  const Operation& operation(int rank, uint64_t ticket) const;
  template <class Look>
  bool reached(const char* what, bool block, const Look& look);

  // Complete a collective that all ranks have started: the first call begins to receive from other
  // hosts, the second puts everything together.
  void begin_to_complete(uint64_t ticket);
  void complete(uint64_t ticket);
  void check_agreement(uint64_t ticket);
  std::string difference(uint64_t ticket) const;
  int64_t block_bytes(int sender, uint64_t ticket) const;
  void gather(uint64_t ticket);
  void reduce(uint64_t ticket, std::span<float> sum);

  Group group_;
  GroupBoard board_;
  std::array<Buffer, Group::kRing> staging_;
  Buffer scratch_;  // holds blocks of other hosts that can't go to the destination
  std::unique_ptr<OutsidePeers> outside_;  // null: all ranks share memory. It uses what is above.
  SentBytes sent_;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  std::array<Destination, Group::kRing> destinations_{};

  // The collective that is being completed.
  bool has_begun_ = false;     // begin_to_complete() has been called
  int64_t missing_bytes_ = 0;  // If the destination is too short by this much, it is not written.
  std::vector<std::span<std::byte>> into_;  // [size] the place for each rank's block
};

}  // namespace trimtab
