// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace trimtab::bench {

// DispatchShape::first_slots of experts in order, as evenly over the ranks as they go.
inline std::vector<int32_t> even_slots(int ranks, int num_experts) {
  std::vector<int32_t> first;
  for (int r = 0; r <= ranks; ++r) first.push_back(static_cast<int32_t>(int64_t{num_experts} * r / ranks));
  return first;
}

}  // namespace trimtab::bench
