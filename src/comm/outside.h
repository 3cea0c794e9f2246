// SPDX-License-Identifier: Apache-2.0
// The ranks of other hosts, as a host sees them: what shared memory can't do goes through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trimtab {

struct Operation;

// The first rank (of a group) that has not come to where it should be, preferably one that has
// left; -1: all are there.
struct Standing {
  int missing = -1;
  bool left = false;
};

// One group's ranks on other hosts. Ranks are those of the group. An error of the network fails the
// domain.
class OutsidePeers {
 public:
  virtual ~OutsidePeers() = default;

  // Sends every outside rank what this rank has for it in collective `ticket` (1, 2, ...). The
  // operation's memory must stay until sending(ticket) finds that nobody is missing.
  virtual void start(uint64_t ticket, const Operation& operation) = 0;
  // An outside rank that this rank's part of the ticket is still on its way to.
  virtual Standing sending(uint64_t ticket) = 0;
  // Which outside rank has not started the ticket?
  virtual Standing standing(uint64_t ticket) = 0;

  // Once a rank has started the ticket: the kind of operation that it is in, the checksum of its
  // counts, and how many bytes it has for this rank.
  struct Announcement {
    int32_t kind = 0;
    uint64_t checksum = 0;
    int64_t bytes = 0;
  };
  virtual Announcement announcement(int rank, uint64_t ticket) const = 0;
  // Begins to receive what `rank` has; `to` is as long as announced. Tickets in order, each rank
  // once.
  virtual void receive(int rank, std::span<std::byte> to) = 0;
  // The rank whose bytes have not all come yet.
  virtual Standing receiving() = 0;
  // This rank takes no further part; waits a bounded time until what it has sent is out.
  virtual void leave() noexcept = 0;
};

class Outside {
 public:
  virtual ~Outside() = default;
  // members: of the domain, for each rank of the group; here: which of them are on this host.
  // number: the group's, larger than that of any earlier group that has two of its ranks.
  virtual std::unique_ptr<OutsidePeers> peers(std::vector<int> members, int rank,
                                              std::vector<bool> here, int64_t number) = 0;
  // Moves messages on. Never blocks.
  virtual void poll() noexcept = 0;
  virtual void tell_failed(int culprit, int blamed, const char* reason) noexcept = 0;
};

}  // namespace trimtab
