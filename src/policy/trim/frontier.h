// SPDX-License-Identifier: Apache-2.0
// What a layer could become with fewer moves than its plan: the placements from which the frame
// chooses where a limit over all layers does not leave every layer its plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/exchange_search.h"
#include "policy/trim/layer_planner.h"
#include "policy/trim/layer_task.h"

namespace trimtab {

// Returns the most level placements [searched slots] that were found for the numbers of moves up to
// limits.max_moves, each more level over the episodes than all with fewer moves. They come from the
// search by single moves, from changes of the numbers of replicas, and from the heat bath at rising
// prices, which starts from `plan`. current must not be empty. Deterministic, unless
// effort.seconds is set.
std::vector<std::vector<int32_t>> layer_frontier(const LayerTask& task,
                                                 std::span<const int32_t> current,
                                                 std::span<const int32_t> plan,
                                                 const Effort& effort, const LayerLimits& limits,
                                                 const Noise& noise);

}  // namespace trimtab
