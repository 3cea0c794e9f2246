// SPDX-License-Identifier: Apache-2.0
// This search solves small layers to proven optimality by branch and bound over the numbers of
// replicas and the contents of ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// The best placement that was found, and what was proved of it.
struct BranchAndBoundResult {
  std::vector<int32_t> placement;  // [searched slots], ranks in order
  double peak = 0;                 // in mean rank loads, of episode 0
  bool peak_proved = false;        // no placement has a lower peak
  bool moves_proved = false;       // no placement reaches this peak with fewer moves
};

// Finds the placement with the least peak of episode 0 and, among those, the fewest moves. It
// starts from a placement that is known, and returns that one if nothing better exists. It stops
// after max_nodes steps, and throws PlanningStopped when `stop` is set.
BranchAndBoundResult branch_and_bound(const LayerTask& task, std::vector<int32_t> known,
                                      int64_t max_nodes, const std::atomic<bool>* stop = nullptr);

}  // namespace trimtab
