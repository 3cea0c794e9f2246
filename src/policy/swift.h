// SPDX-License-Identifier: Apache-2.0
// This planner of few moves follows SwiftBalancer (vLLM-Ascend). First redundant replicas go where
// they are needed; then single experts of the hottest rank are exchanged with others. A rank sends
// at most one expert to any other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/slot_ranges.h"

namespace trimtab {

struct SwiftOptions {
  double level_par = 1.01;  // a layer whose PAR is not above this keeps its placement
  // In mean rank loads: a change must lower the load of the rank or replica it relieves by this.
  double min_gain = 0.01;
  int max_swaps = 100;
  int max_per_pair = 1;  // experts from one rank to another
};

// Returns a placement of one layer: [slots]. It is `current` itself when the layer is level or no
// change lowers its peak. load: [experts], >= 0; current: [slots].
//
// Any replica of an expert that has others is redundant, in whichever slot it is. One is given up
// for a replica of a hotter expert only when the larger of the two shares falls by the gain, so
// replicas that are still wanted stay. Of the slots that can be given up, the one on the coldest
// rank is. An expert that arrives in the plan may be passed on by a swap; what counts against the
// limit per pair of ranks are the transfers of the finished placement. Averages and thresholds are
// the layer's own.
//
// Source: vllm-ascend, "SwiftBalancer" (issue and pull request texts) and policy_swift_balancer.py;
// it takes all thresholds from layer 0, supposes one redundant slot on each rank, and never swaps
// an expert that just arrived.
std::vector<int32_t> swift_placement(std::span<const int64_t> load,
                                     std::span<const int32_t> current, SlotRanges slots,
                                     const SwiftOptions& options = {});

}  // namespace trimtab
