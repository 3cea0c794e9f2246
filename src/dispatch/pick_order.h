// SPDX-License-Identifier: Apache-2.0
// A rank's picks in the order in which they are sent: by slot, then as they stand in the request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace trimtab {

// counts [slots]: the picks of each slot.
inline void count_picks(std::span<const int32_t> ids, std::span<int32_t> counts) {
  std::ranges::fill(counts, 0);
  for (const int32_t id : ids) {
    if (id >= 0) ++counts[id];
  }
}

// Counting sort. counts [slots]: the picks of each slot; starts [slots]: scratch; picks
// [ids.size()]: the first so many as are returned get the index of each pick that has a slot.
inline int32_t sort_picks(std::span<const int32_t> ids, std::span<int32_t> counts,
                          std::span<int32_t> starts, std::span<int32_t> picks) {
  count_picks(ids, counts);
  int32_t sum = 0;
  for (size_t slot = 0; slot < counts.size(); ++slot) {
    starts[slot] = sum;
    sum += counts[slot];
  }
  for (int32_t i = 0; i < std::ssize(ids); ++i) {
    if (ids[i] >= 0) picks[starts[ids[i]]++] = i;
  }
  return sum;
}

}  // namespace trimtab
