// SPDX-License-Identifier: Apache-2.0
// One group's ranks on other hosts, reached by MPI. For each collective a rank sends each of them a
// header, which says what it is in and how much it has for that rank, and then the bytes, in
// messages of at most 1 GiB. Messages between two ranks keep their order, so headers need no
// ticket.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/group.h"
#include "comm/outside.h"
#include "trimtab/tensor.h"

namespace trimtab {

class MpiNetwork;

class MpiPeers final : public OutsidePeers {
 public:
  // Uses the tags first_tag, for headers, and the next one, for bytes.
  //
  // MPI can't always take a receive back: one whose message has begun to arrive ends only when its
  // sender goes on. After a failure nobody waits for that, so MPI receives only into memory that
  // can be kept: shared memory, which a failed domain does not use again, or buffers of this
  // object.
  MpiPeers(MpiNetwork& network, std::vector<int> members, int rank, const std::vector<bool>& here,
           int first_tag);
  ~MpiPeers() override;
  MpiPeers(const MpiPeers&) = delete;
  MpiPeers& operator=(const MpiPeers&) = delete;

  void start(uint64_t ticket, const Operation& operation) override;
  Standing sending(uint64_t ticket) override;
  Standing standing(uint64_t ticket) override;
  Announcement announcement(int rank, uint64_t ticket) const override;
  void receive(int rank, std::span<std::byte> to) override;
  Standing receiving() override;
  void leave() noexcept override;

 private:
  // A peer starts at most kMaxInFlight collectives beyond what this rank has started, which is as
  // far beyond what it has completed.
  static constexpr uint64_t kHeaders = 2 * GroupState::kRing;
  static constexpr int32_t kLeft = -1;  // the kind that means: no more will come

  struct Peer {
    int rank = 0;
    Announcement incoming;
    std::array<Announcement, kHeaders> headers{};  // by ticket
    uint64_t started = 0;
    bool left = false;
  };
  // Requests, and the peer that each is about.
  struct Transfers {
    std::vector<MPI_Request> requests;
    std::vector<int> ranks;
    std::vector<Announcement> headers;  // being sent
  };

  int member(int rank) const { return members_[rank]; }
  const Peer& peer(int rank) const;
  void post_header_receive(int64_t peer);
  void take_headers();
  // Cuts bytes into messages and calls begin(data, bytes, request) for each.
  template <class Byte, class Begin>
  void in_messages(int rank, std::span<Byte> bytes, Transfers& transfers, const Begin& begin);
  Standing first_unfinished(Transfers& transfers);
  std::span<std::byte> landing(std::span<std::byte> to);
  void deliver();
  bool has_ended(std::vector<MPI_Request>& requests);
  bool receives_have_ended();

  MpiNetwork& network_;
  const std::vector<int> members_;
  const int rank_;
  const int header_tag_;
  std::vector<Peer> peers_;
  std::vector<MPI_Request> header_requests_;  // [peers_]
  std::vector<int> arrived_headers_;          // [peers_] what MPI_Testsome fills
  std::array<Transfers, GroupState::kRing> sends_;
  Transfers receives_;
  // Where messages land whose destination is not shared memory; the first num_landings_ are in use.
  struct Landing {
    Buffer bytes;
    std::span<std::byte> to;
  };
  std::vector<Landing> landings_;
  int64_t num_landings_ = 0;
};

}  // namespace trimtab
