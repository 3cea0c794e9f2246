// SPDX-License-Identifier: Apache-2.0
// The interface to the ranks of other hosts, which shared memory can't reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace trimtab {

struct Operation;

// Whom a wait still waits for: the first rank of a group that has not come to where it should be,
// preferably one that has left. missing is -1 when all ranks are there.
struct Standing {
  int missing = -1;
  bool left = false;
};

// The ranks of one group that are on other hosts, numbered as in the group. An error of the network
// fails the domain.
class OutsidePeers {
 public:
  virtual ~OutsidePeers() = default;

  // Sends every outside rank what this rank has for it in collective `ticket` (1, 2, ...). The
  // operation's memory must stay until sending(ticket) finds that nobody is missing.
  virtual void start(uint64_t ticket, const Operation& operation) = 0;
  // Which outside rank has not yet taken over this rank's part of the ticket?
  virtual Standing sending(uint64_t ticket) = 0;
  // Which outside rank has not started the ticket?
  virtual Standing standing(uint64_t ticket) = 0;

  // What a rank says when it starts a ticket: the kind of its operation, the checksum of its
  // counts, and how many bytes it has for this rank.
  struct Announcement {
    int32_t kind = 0;
    uint64_t checksum = 0;
    int64_t bytes = 0;
  };
  virtual Announcement announcement(int rank, uint64_t ticket) const = 0;
  // Begins to receive what `rank` has for this rank; `to` is as long as announced. Called for one
  // ticket after the other, once for each rank.
  virtual void receive(int rank, std::span<std::byte> to) = 0;
  // Which rank's bytes have not all come yet?
  virtual Standing receiving() = 0;
  // This rank takes no further part. Waits until what it has sent is out, at most for the timeout.
  virtual void leave() noexcept = 0;
};

class Outside {
 public:
  virtual ~Outside() = default;
  // members: the rank in the domain of each rank of the group; here: which of them are on this
  // host. number: the number of the group, larger than that of any earlier group which has two of
  // its ranks.
  virtual std::unique_ptr<OutsidePeers> peers(std::vector<int> members, int rank,
                                              std::vector<bool> here, int64_t number) = 0;
  // Lets messages make progress. Never blocks.
  virtual void poll() noexcept = 0;
  virtual void tell_failed(int culprit, int blamed, const char* reason) noexcept = 0;
};

}  // namespace trimtab
