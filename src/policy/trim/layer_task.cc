// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/layer_task.h"

namespace trimtab {

int LayerTask::max_copies() const {
  int ranks = 0;
  for (int r = 0; r < num_ranks; ++r) ranks += slots_of(r) > 0 ? 1 : 0;
  return ranks;
}

std::vector<int32_t> LayerTask::copies(std::span<const int32_t> map) const {
  std::vector<int32_t> copies(num_experts, full_total);
  for (const int32_t e : map) ++copies[e];
  return copies;
}

int LayerTask::received(int rank, std::span<const int32_t> map) const {
  int received = 0;
  for (int s = first_slots[rank]; s < first_slots[rank + 1]; ++s) {
    received += holds(rank, map[s]) ? 0 : 1;
  }
  return received;
}

}  // namespace trimtab
