// SPDX-License-Identifier: Apache-2.0
// What the rank loads of a window would be under another placement, with tokens shared out over
// replicas as the layers do it.
#pragma once

#include <cstdint>
#include <vector>

#include "live/window.h"
#include "trimtab/policy.h"
#include "trimtab/split.h"

namespace trimtab {

// PAR of each part of the window: [parts]. With kStatic it depends on which ranks the tokens come
// from, which nobody knows any more: then as if each replica got as many, as with kRoundRobin.
std::vector<double> estimated_pars(const Placement& placement, int layer, const Load& load,
                                   SplitRule rule, const Topology& topology);
// PAR of each part as it was: [parts].
std::vector<double> measured_pars(const Window& window, int layer, int num_ranks);

}  // namespace trimtab
