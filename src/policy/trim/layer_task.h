// SPDX-License-Identifier: Apache-2.0
// The task that trim solves for one layer. It consists of the loads of experts in a few episodes,
// the ranks with the slots to fill, what the ranks hold now, and the price of a move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/matrix.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {

// An episode is a run of steps that a plan should suit. Loads are in units of the episode's mean
// rank load.
struct Episodes {
  int count = 0;
  int num_experts = 0;
  std::vector<float> share;   // [experts, count]
  std::vector<float> weight;  // [count], sums to 1

  Table<const float> shares() const { return {share.data(), num_experts, count}; }
  std::span<const float> of(int expert) const { return shares()[expert]; }
};

// The part of an expert's load that each of `replicas` replicas carries.
inline float share_of(float load, int32_t replicas) {
  return load / static_cast<float>(replicas);
}

// A rank with at least as many slots as there are experts holds every expert `full[rank]` times for
// certain. Only its slots beyond that, fewer than there are experts, are searched, and in those a
// rank holds no expert twice. A placement of these slots is an array [searched slots]. The episodes
// and the arrays behind `slots` and `full` must outlive the task.
struct LayerTask {
  int num_experts = 0;
  const Episodes* episodes = nullptr;
  SlotRanges slots;               // the searched slots of each rank
  std::span<const int32_t> full;  // [ranks]
  int32_t full_total = 0;         // the sum of `full`: replicas that every expert has anyway
  Matrix<uint8_t> held;           // [ranks, experts] 1 if the rank holds the expert now
  float move_price = 0;           // PAR that a move must gain to pay for itself

  int num_ranks() const { return slots.num_ranks(); }
  int num_slots() const { return slots.num_slots(); }
  bool holds(int rank, int expert) const { return held(rank, expert) != 0; }
  // An expert needs at least min_replicas() of the searched slots, and may have max_replicas() of
  // them, which is one on each rank.
  int min_replicas() const { return full_total > 0 ? 0 : 1; }
  int max_replicas() const;
  // The replicas of each expert under a placement, those of full ranks included: [experts].
  std::vector<int32_t> replicas(std::span<const int32_t> placement) const;
  // The weights that one rank, or all ranks together, must receive for a placement.
  int received(int rank, std::span<const int32_t> placement) const;
  int moves(std::span<const int32_t> placement) const;
};

}  // namespace trimtab
