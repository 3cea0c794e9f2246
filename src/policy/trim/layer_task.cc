// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/layer_task.h"

#include "policy/layer_placement.h"

namespace trimtab {

int LayerTask::max_replicas() const {
  return ranks_with_slots(slots);
}

std::vector<int32_t> LayerTask::replicas(std::span<const int32_t> placement) const {
  std::vector<int32_t> replicas(num_experts, full_total);
  for (const int32_t e : placement) ++replicas[e];
  return replicas;
}

int LayerTask::received(int rank, std::span<const int32_t> placement) const {
  int received = 0;
  for (const int32_t e : slots.of(rank, placement)) received += holds(rank, e) ? 0 : 1;
  return received;
}

int LayerTask::moves(std::span<const int32_t> placement) const {
  int moves = 0;
  for (int r = 0; r < num_ranks(); ++r) moves += received(r, placement);
  return moves;
}

}  // namespace trimtab
