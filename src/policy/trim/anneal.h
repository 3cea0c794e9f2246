// SPDX-License-Identifier: Apache-2.0
// One heat bath over the exchanges of a layer: from b = 10 at a temperature of 1e-3 PAR down to
// plain descent at b = 40 (see exchange_search.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/trim/exchange_search.h"
#include "policy/trim/layer_planner.h"
#include "policy/trim/layer_task.h"

namespace trimtab {

constexpr int kMostSweeps = 1 << 20;

// Returns what so many sweeps make of a placement [searched slots]; fewer where effort.max_visits
// affords no more. It ends early once late() is true.
std::vector<int32_t> anneal(
    const LayerTask& task, const Noise& noise, std::vector<int32_t> placement, const Effort& effort,
    int sweeps, const std::function<bool()>& late = [] { return false; });

}  // namespace trimtab
