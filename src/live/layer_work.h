// SPDX-License-Identifier: Apache-2.0
// The sends, receives and local copies that one rank performs to change one layer.
#pragma once

#include <span>
#include <vector>

#include "trimtab/expert_slots.h"
#include "trimtab/migrator.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

struct LayerWork {
  // One round of messages: at most one send and one receive per rank.
  struct Round {
    int send_slot = -1;  // the slot of this rank whose expert is sent; -1: nothing is sent
    int to = -1;         // the rank that gets it
    int receive = -1;    // the index in `moves` of what is received; -1: nothing is received
  };
  // Where the block of a slot's next expert comes from.
  enum class How {
    kTakeBlock,  // another slot of this rank gives its block away
    kCopy,       // a slot of this rank keeps its block, or another slot takes it: the bytes are
                 // copied to a spare
    kReceive     // another rank sends the bytes to a spare
  };

  int layer = -1;                                // -1: nothing changes
  std::vector<Move> moves;                       // the moves to slots of this rank
  std::vector<ExpertSlots::BlockChange> blocks;  // [moves] the block that each of these slots gets
  std::vector<How> how;                          // [moves]
  std::vector<Round> rounds;                     // as many on every rank
  int spares = 0;                                // spares that this rank needs
};

// slots: of all ranks. Throws InvalidArgument, the same on every rank, for moves of several layers,
// slots that are out of range, and slots that get two experts.
LayerWork layer_work(std::span<const Move> moves, SlotRanges slots, int rank);

}  // namespace trimtab
