// SPDX-License-Identifier: Apache-2.0
// A rank's end of a group whose ranks are threads of one process. Collectives cost no staging copy: a rank publishes
// where its data is, and each receiver reads it from there when it completes the operation.
#pragma once

#include <array>
#include <memory>

#include "comm/group.h"
#include "trimtab/communicator.h"

namespace trimtab {

// The board of a group of threads: a ring of pointers a rank.
class ThreadBoard final : public Board {
 public:
  ThreadBoard(Group& group, int rank) : group_(group), rank_(rank) {}

  uint64_t post(const void* item) override;
  bool posted(uint64_t n) override { return group_.reached(rank_, Milestone::kPosted, n, "board"); }
  void wait_posted(uint64_t n, const char* operation) override { group_.wait(rank_, Milestone::kPosted, n, operation); }
  const void* item(int rank, uint64_t n) const override { return group_.seat(rank).items[n % Group::kRing]; }

 private:
  void begin_read() override;
  void end_read() noexcept override;

  Group& group_;
  const int rank_;
  uint64_t last_ = 0;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank);
  ~ThreadCommunicator() override;
  ThreadCommunicator(const ThreadCommunicator&) = delete;
  ThreadCommunicator& operator=(const ThreadCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::span<const int32_t> hosts() const override { return group_->hosts(); }
  void barrier() override;
  Pending all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<int64_t> bytes_of_rank) override;
  Pending reduce_scatter_v(std::span<const float> send, std::span<const int64_t> counts,
                           std::span<float> recv) override;
  Pending all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes, std::span<std::byte> recv,
                       std::span<int64_t> recv_bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  Board* board() override { return group_->shares_memory() ? &board_ : nullptr; }
  void abort(const char* reason) noexcept override;

 private:
  // Where the result of a collective goes; the peers need not know.
  struct Destination {
    std::span<std::byte> bytes;
    std::span<int64_t> bytes_of_rank;
    std::span<float> sum;
  };
  static_assert(Group::kRing >= kMaxInFlight);

  bool done(uint64_t ticket, bool block) override;
  bool released(uint64_t ticket, bool block) override;

  uint64_t start(const Operation& operation, const Destination& destination);
  const Operation& operation(int rank, uint64_t ticket) const;
  // The local part of a collective that all ranks have started.
  void complete(uint64_t ticket);
  void check_agreement(uint64_t ticket);
  // What `sender` has for this rank in a gather or an all-to-all.
  std::span<const std::byte> block_from(int sender, uint64_t ticket) const;
  // Returns by how many bytes the destination is too short; it is written only when that is 0.
  size_t gather(uint64_t ticket, const Destination& destination) const;
  void reduce(uint64_t ticket, const Destination& destination) const;

  const std::shared_ptr<Group> group_;
  const int rank_;
  ThreadBoard board_;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  std::array<Destination, Group::kRing> destinations_{};
};

}  // namespace trimtab
