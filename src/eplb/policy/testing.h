// SPDX-License-Identifier: Apache-2.0
// What the tests of maps share.
#pragma once

#include <cstdint>
#include <vector>

namespace trimtab {

// first_slots of ranks with equally many slots: [ranks + 1].
inline std::vector<int32_t> equal_slots(int num_ranks, int slots_per_rank) {
  std::vector<int32_t> first;
  for (int r = 0; r <= num_ranks; ++r) first.push_back(r * slots_per_rank);
  return first;
}

}  // namespace trimtab
