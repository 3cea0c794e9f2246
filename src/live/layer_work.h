// SPDX-License-Identifier: Apache-2.0
// What one layer's transfers mean for one rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/expert_slots.h"
#include "trimtab/migrator.h"

namespace trimtab {

// How a slot of the rank gets its next expert.
struct SlotChange {
  enum class How {
    kMove,    // with the block of a slot of this rank that gives it up
    kCopy,    // from a slot of this rank that keeps it, or whose block another slot takes
    kReceive  // from another rank
  };
  Transfer transfer;
  How how;
  int from_rank;
  ExpertSlots::Change change;
};

struct LayerWork {
  // Of one round of messages: what the rank sends and what it receives.
  struct Round {
    int send_slot = -1;  // of this rank; -1: nothing
    int to = -1;         // rank
    int receive = -1;    // index into changes; -1: nothing
  };

  int layer = -1;                   // -1: nothing changes
  std::vector<SlotChange> changes;  // of this rank's slots
  std::vector<Round> rounds;        // as many on every rank
  int spares = 0;
};

// first_slots: [ranks + 1]. Throws InvalidArgument, the same on every rank, for transfers of
// several layers, slots that are out of range, and slots that get two experts.
LayerWork layer_work(std::span<const Transfer> transfers, std::span<const int32_t> first_slots,
                     int rank);

}  // namespace trimtab
