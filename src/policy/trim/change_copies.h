// SPDX-License-Identifier: Apache-2.0
// Other numbers of copies with few moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// The map `map` with replicas of little use overwritten by ones that are needed, at most
// max_changes, one move each: a copy goes to the expert with the largest demand per copy from one
// that can spare it, as long as that lowers the larger of both by more than `reluctance` (0.3: 30
// %), in the slot where it levels the ranks most.
std::vector<int32_t> change_copies(const LayerTask& task, std::vector<int32_t> map,
                                   std::span<const float> demand, float reluctance,
                                   int64_t max_changes);

}  // namespace trimtab
