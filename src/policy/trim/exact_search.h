// SPDX-License-Identifier: Apache-2.0
// Exact solution of small layers by branch and bound over the numbers of copies and the contents of
// ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

struct ExactResult {
  std::vector<int32_t> map;   // [searched slots], ranks in order
  double peak = 0;            // in mean rank loads, of episode 0
  bool peak_proved = false;   // no map has a lower peak
  bool moves_proved = false;  // nor this peak with fewer moves
};

// The map with the least peak of episode 0 and, among those, the fewest moves, starting from a map
// that is known (which it returns if nothing better exists). Stops after max_nodes steps: then the
// flags tell what was proved.
ExactResult search_exactly(const LayerTask& task, std::vector<int32_t> known, int64_t max_nodes);

}  // namespace trimtab
