// SPDX-License-Identifier: Apache-2.0
// For tests: a rank's end of any group, threads or processes, on which something goes wrong at a
// chosen operation. Collectives, barriers and posts on the board count, from 0, in the order in
// which this rank starts them; groups that come from it by split() are as they are.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "trimtab/communicator.h"

namespace trimtab {

struct Fault {
  enum class Kind {
    kDelay,    // the operation starts `time` late
    kDrop,     // it is lost: it does not start before the group has failed, and then throws
    kCorrupt,  // one bit of what a collective sends is another one; posts go through
    kKill,     // the rank ends here: a thread by the exception Killed
  };
  Kind kind = Kind::kDelay;
  int64_t operation = 0;
  std::chrono::milliseconds time{0};
  // The bit that kCorrupt changes, modulo the bits of the message; -1: one in the middle.
  int64_t bit = -1;
};

struct Killed : std::runtime_error {
  Killed() : std::runtime_error("killed by the test") {}
};

class FaultyCommunicator final : public Communicator {
 public:
  // aside: another group of the same ranks, in which the others do nothing; kDrop needs it to see
  // that the ranks have failed. comm and aside must outlive this.
  FaultyCommunicator(Communicator& comm, const std::optional<Fault>& fault,
                     Communicator* aside = nullptr)
      : comm_(comm), fault_(fault), aside_(aside), board_(*this) {}

  // Started so far.
  int64_t operations() const { return operations_; }

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::span<const int32_t> hosts() const override { return comm_.hosts(); }
  SentBytes sent() const override { return comm_.sent(); }
  void barrier() override;
  Pending all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<int64_t> bytes_of_rank) override;
  Pending reduce_scatter_v(std::span<const float> send, std::span<const int64_t> counts,
                           std::span<float> recv) override;
  Pending all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                       std::span<std::byte> recv, std::span<int64_t> recv_bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override {
    return comm_.split(color, key);
  }
  Board* board() override { return comm_.board() == nullptr ? nullptr : &board_; }
  Buffer allocate(size_t bytes) override { return comm_.allocate(bytes); }
  void abort(const char* reason) noexcept override { comm_.abort(reason); }

 private:
  class FaultyBoard final : public Board {
   public:
    explicit FaultyBoard(FaultyCommunicator& comm) : comm_(comm) {}
    uint64_t post(const void* item) override;
    bool posted(uint64_t n) override { return inner().posted(n); }
    void wait_posted(uint64_t n, const char* operation) override {
      inner().wait_posted(n, operation);
    }
    const void* item(int rank, uint64_t n) const override { return inner().item(rank, n); }
    bool shares(const void* memory, size_t bytes) const override {
      return inner().shares(memory, bytes);
    }

   private:
    Board& inner() const { return *comm_.comm_.board(); }
    void begin_read() override { reading_.emplace(inner()); }
    void end_read() noexcept override { reading_.reset(); }

    FaultyCommunicator& comm_;
    std::optional<Reading> reading_;
  };

  bool done(uint64_t ticket, bool block) override;
  bool released(uint64_t ticket, bool block) override;

  // What becomes of an operation before it starts. True: it is to be corrupted.
  bool strike();
  [[noreturn]] void wait_until_failed();
  // send, or a copy of it with the fault in it.
  std::span<const std::byte> struck(std::span<const std::byte> send);
  Pending keep(Pending pending);
  Pending& pending(uint64_t ticket) { return pending_[ticket % pending_.size()]; }

  Communicator& comm_;
  const std::optional<Fault> fault_;
  Communicator* const aside_;
  FaultyBoard board_;
  int64_t operations_ = 0;
  uint64_t started_ = 0;
  std::array<Pending, 2 * kMaxInFlight> pending_;
  std::vector<float> corrupted_;  // floats, as reduce_scatter_v wants
};

}  // namespace trimtab
