// SPDX-License-Identifier: Apache-2.0
// One layer as trim sees it: loads of experts in a few episodes, ranks with slots to fill, the
// current map and the price of a move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/table.h"

namespace trimtab {

// Runs of steps that a plan should suit. Loads are in units of the episode's mean rank load.
struct Episodes {
  int count = 0;
  int num_experts = 0;
  std::vector<float> share;   // [experts][count]
  std::vector<float> weight;  // [count], sums to 1

  std::span<const float> of(int expert) const {
    return {share.data() + cells(expert, count), static_cast<size_t>(count)};
  }
};

// A rank with at least as many slots as there are experts holds every expert `full[rank]` times for
// certain; only the slots beyond that (fewer than experts) are searched, and in those no expert
// comes twice on a rank.
struct LayerTask {
  int num_ranks = 0;
  int num_experts = 0;
  const Episodes* episodes = nullptr;
  std::vector<int32_t> first_slots;  // [ranks + 1] of the searched slots
  std::vector<int32_t> full;         // [ranks]
  int32_t full_total = 0;            // sum of `full`: copies that every expert has anyway
  std::vector<uint8_t> held;         // [ranks][experts] 1 if the rank holds the expert now
  float move_price = 0;              // PAR that a move must gain to pay for itself

  int num_slots() const { return first_slots.back(); }
  int slots_of(int rank) const { return first_slots[rank + 1] - first_slots[rank]; }
  bool holds(int rank, int expert) const {
    return held[cells(rank, num_experts) + static_cast<size_t>(expert)] != 0;
  }
  // Copies that an expert needs among the searched slots, and may have: one a rank.
  int min_copies() const { return full_total > 0 ? 0 : 1; }
  int max_copies() const;
  // Copies of each expert under a map [searched slots], those of full ranks included: [experts].
  std::vector<int32_t> copies(std::span<const int32_t> map) const;
  // Weights that a rank must get for its slots of a map [searched slots].
  int received(int rank, std::span<const int32_t> map) const;
};

}  // namespace trimtab
