// SPDX-License-Identifier: Apache-2.0
// The messages between this rank and one rank of another host, over the caller's streams.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/failure_domain.h"
#include "comm/group.h"
#include "comm/outside.h"
#include "trimtab/process_communicator.h"

namespace trimtab {

// Two threads, one that sends and one that receives, so that messages move while ranks compute.
// What is sent is copied first, and what comes is kept until somebody wants it: memory of a caller
// is never touched by a thread. A peer is at most GroupState::kRing collectives ahead in each
// group, which bounds what is kept.
class StreamLink : public std::enable_shared_from_this<StreamLink> {
 public:
  // domain: outlives close(). rank, peer: of the domain.
  StreamLink(std::shared_ptr<HostStreams> streams, FailureDomain& domain, int rank, int peer);
  // Begins to send and to receive.
  void open();
  // This rank needs the link no more: says so to the peer.
  void begin_close() noexcept;
  // Then waits until `end` for the peer to say the same. Threads that are then still blocked are
  // left to themselves.
  void close(std::chrono::steady_clock::time_point end) noexcept;

  // This rank's part of its next collective in a group.
  void send(int64_t group, const OutsidePeers::Announcement& what,
            std::span<const std::byte> bytes);
  void send_left(int64_t group) noexcept;
  void send_failed(int culprit, int blamed, const char* reason) noexcept;
  // Waits until all that was sent is out. False: that was not so at `end`.
  bool flush(std::chrono::steady_clock::time_point end) noexcept;

  // How many collectives of a group the peer has started, and has it left the group?
  struct Progress {
    uint64_t started = 0;
    bool left = false;
  };
  Progress progress(int64_t group);
  OutsidePeers::Announcement announcement(int64_t group, uint64_t ticket);
  // Takes the bytes of the earliest collective of which they have not been taken.
  void take(int64_t group, std::span<std::byte> to);
  // Nobody will ask about the group any more.
  void forget(int64_t group) noexcept;

 private:
  static constexpr uint64_t kHeaders = 2 * GroupState::kRing;
  // The kinds of messages beside those of collectives.
  static constexpr int32_t kLeft = -1, kFailed = -2, kClosed = -3;

  // Messages begin with a packet of one length, which holds short ones whole: a stream does not say
  // how much has come.
  struct Header {
    uint64_t magic = 0;
    int64_t group = 0;
    OutsidePeers::Announcement what;
  };
  struct Packet {
    static constexpr size_t kBytes = 1024;
    Header header;
    std::array<std::byte, kBytes - sizeof(Header)> bytes{};
  };
  struct Failure {
    int32_t culprit = 0;
    int32_t blamed = 0;
    std::array<char, 900> reason{};
  };
  static_assert(sizeof(Failure) <= sizeof(Packet::bytes));
  struct Outgoing {
    Packet packet;
    Buffer bytes;  // what the packet does not hold
  };
  // What has come of one group.
  struct Inbox {
    std::array<OutsidePeers::Announcement, kHeaders> headers{};  // by ticket
    Progress progress;
    std::deque<Buffer> bytes;
    bool forgotten = false;
  };

  void run_sender() noexcept;
  void run_receiver() noexcept;
  bool receive_message();
  void deliver(const Header& header, Buffer bytes);
  void fail(const Failure& failure) noexcept;
  // The stream has ended with an error.
  void lose(const char* why) noexcept;
  Buffer spare(size_t bytes);
  void give_back(Buffer buffer);

  const std::shared_ptr<HostStreams> streams_;
  const int rank_, peer_;

  std::mutex attached_;  // guards domain_; never taken while mutex_ is held
  FailureDomain* domain_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Outgoing> outgoing_;
  bool sending_ = false, broken_ = false, closing_ = false, peer_closed_ = false;
  int threads_running_ = 0;
  std::map<int64_t, Inbox> inboxes_;
  std::vector<Buffer> spares_;
};

}  // namespace trimtab
