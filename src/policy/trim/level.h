// SPDX-License-Identifier: Apache-2.0
// Exact levelling of a single load vector: steepest descent on the highest rank.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// Lowers the peak of episode 0 of the task by exchanges between the highest rank and another until
// the peak is at most `target` (in mean rank loads) or no exchange helps; an exchange that costs
// moves must gain their price. Returns the peak. map: [searched slots], changed in place; nothing
// gets a duplicate that had none.
double level(const LayerTask& task, std::vector<int32_t>& map, double target);

}  // namespace trimtab
