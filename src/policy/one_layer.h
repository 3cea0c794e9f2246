// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trimtab/placement.h"

namespace trimtab {

// A placement of one layer, with the ranks and slots of `like`. logical: [slots].
inline Placement one_layer(const Placement& like, std::span<const int32_t> logical) {
  std::vector<int> slots_per_rank;
  for (int r = 0; r < like.num_ranks(); ++r) slots_per_rank.push_back(like.slots_of_rank(r));
  return {1, like.num_experts(), std::move(slots_per_rank), {logical.begin(), logical.end()}};
}

}  // namespace trimtab
