// SPDX-License-Identifier: Apache-2.0
// This function changes the numbers of replicas of a placement with few moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// Overwrites replicas of little use in a placement with replicas that are needed, at most
// max_changes of them; each costs one move. The expert with the largest demand per replica gets the
// slot of an expert that can spare a replica, as long as that lowers the larger of their demands
// per replica by more than `reluctance` (0.3: 30 %). Of the possible slots it is the one that
// levels the ranks most.
std::vector<int32_t> change_replicas(const LayerTask& task, std::vector<int32_t> placement,
                                     std::span<const float> demand, float reluctance,
                                     int64_t max_changes);

}  // namespace trimtab
