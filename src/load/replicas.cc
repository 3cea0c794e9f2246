// SPDX-License-Identifier: Apache-2.0
#include "load/replicas.h"

#include <algorithm>

namespace trimtab {

std::vector<int32_t> replica_counts(std::span<const int32_t> logical, int num_experts) {
  std::vector<int32_t> counts(cells(num_experts), 0);
  for (const int32_t e : logical) ++counts[e];
  return counts;
}

int64_t duplicate_slots(std::span<const int32_t> logical, SlotRanges slots) {
  int64_t duplicates = 0;
  for (int r = 0; r < slots.num_ranks(); ++r) {
    const auto held = slots.of(r, logical);
    for (auto slot = held.begin(); slot != held.end(); ++slot)
      duplicates += std::find(held.begin(), slot, *slot) != slot ? 1 : 0;
  }
  return duplicates;
}

}  // namespace trimtab
