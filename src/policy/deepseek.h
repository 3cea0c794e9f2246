// SPDX-License-Identifier: Apache-2.0
// The planner of deepseek-ai/EPLB packs expert groups on nodes, replicates experts inside each
// node, and packs the replicas on its ranks. Each packing puts the heaviest item first, on the
// lightest pack that is not full.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/policy.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

// Returns a placement of one layer: [slots]. load: [experts], >= 0. num_groups divides the experts.
//
// The result is the reference's wherever that gives one: hierarchical when the nodes divide the
// groups, else global (one group, one node); loads as float32; of equal replica loads the first
// expert gets the next replica; of equally light ranks the lowest takes the next replica; where
// every rank (or node) takes one item, they stay in order. The current placement is not looked at,
// and a rank may get two replicas of one expert.
//
// Where the reference leaves the result open, this is the rule:
// - Among equal loads the lower index is packed first. The reference sorts with torch's unstable
//   sort, which keeps this order up to 16 items and an order of its own beyond.
// - A group's load is summed in float32 in expert order. The reference's sums differ from 2^24 on
//   in groups of 5 or more, where torch adds in an order that depends on the machine's vectors.
// - Ranks may have different numbers of slots, and nodes different numbers of ranks; the reference
//   refuses that. When some node has fewer slots than its share of experts, the layer is planned
//   globally.
// Source: https://github.com/deepseek-ai/EPLB, eplb.py at d52c72d.
std::vector<int32_t> deepseek_placement(std::span<const int64_t> load, SlotRanges slots,
                                        const Topology& topology, int num_groups);

}  // namespace trimtab
