// SPDX-License-Identifier: Apache-2.0
// This function levels the ranks for a single load vector by steepest descent on the highest rank.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// Lowers the peak of episode 0 of the task by exchanges of two slots between the highest rank and
// another, until the peak is at most `target` (in mean rank loads) or no exchange helps. An
// exchange that costs moves must gain their price. Returns the peak. placement: [searched slots],
// changed in place; no rank gets an expert twice that did not have it twice.
double level(const LayerTask& task, std::vector<int32_t>& placement, double target);

}  // namespace trimtab
