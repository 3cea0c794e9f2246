// SPDX-License-Identifier: Apache-2.0
// A planner of few moves after SwiftBalancer (vLLM-Ascend): redundant copies go where they are
// needed, then single experts of the hottest rank are exchanged with others, each rank sending at
// most one expert to any other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

struct SwiftOptions {
  double level_par = 1.01;  // a layer whose PAR is not above this keeps its map
  double min_gain =
      0.01;  // of the mean rank load: what a change must take from the rank or replica it relieves
  int max_swaps = 100;
  int max_per_pair = 1;  // experts from one rank to another
};

// One layer. load: [experts], >= 0; current: [slots]; first_slots: [ranks + 1]. Returns [slots];
// `current` itself when the layer is level or no change lowers its peak.
//
// Any copy of an expert that has others is redundant, in whichever slot it is. One is given up for
// a copy of a hotter expert only when the larger of the two shares falls by the gain, so copies
// that are still wanted stay; of the slots that can be given up, the one on the coldest rank is. An
// expert that arrives in the plan may be passed on by a swap; what counts against the limit per
// pair of ranks are the transfers of the finished map. Averages and thresholds are the layer's own.
//
// Source: vllm-ascend, "SwiftBalancer" (issue and pull request texts) and policy_swift_balancer.py;
// it takes all thresholds from layer 0, supposes one redundant slot on each rank, and never swaps
// an expert that just arrived.
std::vector<int32_t> swift_map(std::span<const int64_t> load, std::span<const int32_t> current,
                               std::span<const int32_t> first_slots,
                               const SwiftOptions& options = {});

}  // namespace trimtab
