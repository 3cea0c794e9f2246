// SPDX-License-Identifier: Apache-2.0
// This search goes from the current placement by one move after the other and keeps, of each number
// of moves, the few placements that are most level. Where moves are scarce it finds what the heat
// bath of exchange_search.h does not: that one has to be told a price, and keeps the numbers of
// replicas.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/trim/layer_planner.h"
#include "policy/trim/layer_task.h"

namespace trimtab {

// The work with which grow() tries every change of one placement of each number of moves up to 24.
int64_t work_to_grow(const LayerTask& task);

// Shows `visit` placements [searched slots] within the limits, by rising numbers of moves: of each
// number the most level ones, in falling order of a peak that is softened by the ranks' mean square
// load. It ends at limits.max_moves, once more moves have not helped for a while, or after `work`
// loads of a rank in an episode were computed. current must not be empty. Deterministic.
void grow(const LayerTask& task, std::span<const int32_t> current, const LayerLimits& limits,
          int64_t work, const std::function<void(const std::vector<int32_t>&)>& visit);

}  // namespace trimtab
