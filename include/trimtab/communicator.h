// SPDX-License-Identifier: Apache-2.0
// Ranks work together through this. A Communicator is one rank's end of a group; every rank calls
// the same operations in the same order. Ranks are threads of one process (run_ranks) or processes
// of one or several hosts (mpi_communicator.h). A rank that fails, leaves or is late gives every
// waiting peer a CommError within the group's timeout: nothing waits for ever.
//
// A group and all that come from it by split() or duplicate() share one fate: when one rank fails
// in one of them (it calls abort(), or any call gives it a CommError), all waits in all of them end
// with a CommError. An end may be used by one thread at a time; destroying it tells the peers of
// that group that the rank has left.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trimtab/tensor.h"

namespace trimtab {

// A bulletin board in memory that all ranks of a group can read: each rank posts items in order,
// peers read them in place. Item n is the n-th post of that rank (1, 2, ...); all ranks post the
// same number in the same order. A rank's item n may be read by peers from wait_posted(n) until the
// reader itself posts item n + 1; hence a rank may reuse the memory behind its item n once all have
// posted item n + 1.
class Board {
 public:
  // How many posts a rank may be ahead of the slowest; one more post() waits for it.
  static constexpr int kMaxAhead = 7;

  virtual ~Board() = default;
  // Returns n. The item must stay readable as said above, and it and all that it points to must be
  // memory that peers can read (shares()). Throws CommError only before the item can be seen.
  virtual uint64_t post(const void* item) = 0;
  // Have all ranks posted item n? Never blocks; throws CommError when they have not and never will.
  virtual bool posted(uint64_t n) = 0;
  // Blocks until posted(n). The error says that `operation` was waited for. Throws CommError.
  virtual void wait_posted(uint64_t n, const char* operation) = 0;
  // Returns item n of a rank. Call it only while the item may be read, and only under a Reading.
  virtual const void* item(int rank, uint64_t n) const = 0;
  // Can peers read this memory, at this address? Any memory where ranks are threads; where they are
  // processes, what comes from Communicator::allocate().
  virtual bool shares(const void* memory, size_t bytes) const = 0;

  // Held while this rank reads what peers have posted, for as long as a copy or a sum takes and
  // never across a wait: a rank that fails waits for its readers before its memory goes
  // (Communicator::abort). The constructor throws CommError when the group has failed already.
  class Reading {
   public:
    explicit Reading(Board& board) : board_(board) { board_.begin_read(); }
    ~Reading() { board_.end_read(); }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    Board& board_;
  };

 private:
  virtual void begin_read() = 0;
  virtual void end_read() noexcept = 0;
};

class Communicator;

// The bytes that one rank has sent to others: what they got from it in collectives. Headers that
// the network adds are not counted, and neither is what ranks of one host read from a Board.
struct SentBytes {
  int64_t to_ranks = 0;  // to all other ranks
  int64_t to_hosts = 0;  // of these, to ranks of other hosts

  SentBytes& operator+=(const SentBytes& more) {
    to_ranks += more.to_ranks;
    to_hosts += more.to_hosts;
    return *this;
  }
  SentBytes operator-(const SentBytes& before) const {
    return {to_ranks - before.to_ranks, to_hosts - before.to_hosts};
  }
  bool operator==(const SentBytes&) const = default;
};

// A collective in flight. It is a value; poll or wait from the thread that uses the Communicator.
// Collectives complete in the order of starting: to complete one also completes those before it.
class Pending {
 public:
  Pending() = default;
  Pending(Communicator* comm, uint64_t ticket) : comm_(comm), ticket_(ticket) {}
  // Is the result there? The first call that finds it so also completes the local part. Never
  // blocks.
  bool done();
  void wait();
  // Is every peer through with this rank's send buffer? Never blocks.
  bool released();
  void wait_released();

 private:
  Communicator* comm_ = nullptr;
  uint64_t ticket_ = 0;
};

class Communicator {
 public:
  // The number of collectives of one Communicator that may be started and not yet done(). One more
  // throws InvalidArgument.
  static constexpr int kMaxInFlight = 8;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // [size] the host of each rank, numbered 0, 1, ... in order of first appearance. The ranks of one
  // host share memory: the group of split(hosts()[rank()], rank()) has a board.
  virtual std::span<const int32_t> hosts() const = 0;
  // What this end has sent since it was made.
  virtual SentBytes sent() const = 0;

  // Returns once every rank has entered it; collectives in flight are then done.
  virtual void barrier() = 0;
  // Concatenates all ranks' bytes in rank order into recv. bytes_of_rank [size] is filled with what
  // each rank sent; the sender decides, receivers need not know. A recv that is too small is an
  // InvalidArgument on this rank when the collective completes: it counts as done, bytes_of_rank
  // says what was needed, and the group goes on. send must stay valid until released(), recv and
  // bytes_of_rank until done().
  virtual Pending all_gather_v(std::span<const std::byte> send, std::span<std::byte> recv,
                               std::span<int64_t> bytes_of_rank) = 0;
  // send: [sum of counts] floats, the block of rank r being counts[r] long; recv: [counts[rank()]]
  // gets the sum of all ranks' blocks for this rank, added in rank order 0, 1, ... in f32. counts
  // [size] must be the same on every rank; if it is not, or if peers are in another operation, some
  // rank gets an InvalidArgument and the group fails. send and counts must stay valid until
  // released(), recv until done().
  virtual Pending reduce_scatter_v(std::span<const float> send, std::span<const int64_t> counts,
                                   std::span<float> recv) = 0;

  // send: a block for every rank in rank order, the block for rank r being send_bytes[r] bytes
  // long; recv gets the blocks that all ranks have for this one, in rank order. recv_bytes [size]
  // is filled with what each rank sent; the sender decides, receivers need not know, and a recv
  // that is too small is as in all_gather_v. send and send_bytes must stay valid until released(),
  // recv and recv_bytes until done().
  virtual Pending all_to_all_v(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                               std::span<std::byte> recv, std::span<int64_t> recv_bytes) = 0;

  // Makes a new group of the ranks with the same color, ordered by (key, rank), with the options of
  // this one. Collective. A rank with color < 0 takes part and gets null.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  // Makes a group of the same ranks with an order of operations of its own; each microbatch in
  // flight needs one. Collective.
  std::unique_ptr<Communicator> duplicate() { return split(0, rank()); }

  // The group's board, or null where ranks are on several hosts and so do not share memory. The
  // board is one ordered channel: whoever uses it must not have a collective of the same
  // Communicator in flight.
  virtual Board* board() = 0;

  // Returns zeroed memory for boards: the ranks of this host can read it, at the same address in
  // each of them. Not collective. It may outlive the Communicator. Throws Error where the host has
  // no room for it.
  virtual Buffer allocate(size_t bytes) = 0;

  // Tells all peers that this rank failed: they get a CommError with this text. Returns when no
  // peer reads this rank's memory any more, so that buffers of operations in flight may go. Never
  // throws; idempotent, the first reason stays.
  virtual void abort(const char* reason) noexcept = 0;

 private:
  friend class Pending;
  virtual bool done(uint64_t ticket, bool block) = 0;
  virtual bool released(uint64_t ticket, bool block) = 0;
};

inline bool Pending::done() {
  return comm_ == nullptr || comm_->done(ticket_, false);
}
inline void Pending::wait() {
  if (comm_ != nullptr) comm_->done(ticket_, true);
}
inline bool Pending::released() {
  return comm_ == nullptr || comm_->released(ticket_, false);
}
inline void Pending::wait_released() {
  if (comm_ != nullptr) comm_->released(ticket_, true);
}

struct GroupOptions {
  // The longest a rank waits for its peers in one operation.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // [ranks] or empty: run_ranks pretends that each rank is on the host of this number, so that what
  // needs several hosts can be tried in one process.
  std::vector<int32_t> hosts = {};
};

// Runs body on `ranks` threads, each with its end of one group, and returns when all have ended.
// The first exception aborts the group (its peers get a CommError instead of a hang) and is
// rethrown here; those that it caused in peers are dropped. A rank whose body has returned has
// left. Throws InvalidArgument for ranks < 1, a timeout <= 0, or hosts of another number of ranks.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body,
               const GroupOptions& options = {});

// Makes the ends of one group for threads that the caller has: [ranks]; end r is for the thread
// that is rank r. All must be used at the same time, and an exception of a rank must abort() its
// end, or peers wait for the timeout. Throws as run_ranks().
std::vector<std::unique_ptr<Communicator>> make_rank_group(int ranks,
                                                           const GroupOptions& options = {});

}  // namespace trimtab
