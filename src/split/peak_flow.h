// SPDX-License-Identifier: Apache-2.0
// How many tokens each replica of a shared expert should get, so that the peak rank load is the
// least possible and as few tokens as possible leave their rank, then their node.
#pragma once

#include <cstdint>
#include <span>

#include "trimtab/split.h"
#include "trimtab/workspace.h"

namespace trimtab {

// One batch, summed as the flow needs it. Indices are those of SplitTable.
struct BatchTotals {
  std::span<const int64_t> shared;  // [shared experts] tokens over all sources
  std::span<const int64_t> fixed;   // [ranks] tokens of experts that live on this rank only
  std::span<const int64_t>
      node;                      // [hubs] tokens of the hub's expert from sources on the hub's node
  std::span<const int64_t> own;  // [arcs] tokens of the arc's expert from the arc's rank
};

// flow: [arcs], the tokens of the arc's expert that its rank receives. Returns the peak rank load.
//
// The peak is sought from a flow that levels expert after expert, which is near the best. It is
// lowered until some tokens find no room; then the ranks they can reach are a witness that it must
// be higher, and the witness says by how much (Dinkelbach's iteration on a max-flow, which keeps
// its flow). At that peak a primal-dual min-cost flow, started from "all own tokens that fit stay",
// moves as few tokens as possible.
int64_t peak_flow(const SplitTable& table, const BatchTotals& batch, Workspace& workspace,
                  std::span<int64_t> flow);

// The peak alone. It does not depend on who sends the tokens, so whatever is in batch.node and
// batch.own does not matter. flow: [arcs], where this works.
int64_t least_peak(const SplitTable& table, const BatchTotals& batch, Workspace& workspace,
                   std::span<int64_t> flow);

// What the memory for a split depends on; more of any of them never takes less.
struct SplitSizes {
  SplitSizes() = default;
  explicit SplitSizes(const SplitTable& table)
      : ranks(table.num_ranks),
        experts(table.num_experts),
        shared(table.shared_expert.size()),
        hubs(table.hub_expert.size()),
        arcs(table.arc_slot.size()) {}

  size_t ranks = 0, experts = 0;
  size_t shared = 0, hubs = 0, arcs = 0;  // of the graph of SplitTable
};
size_t peak_flow_bytes(const SplitSizes& sizes);

}  // namespace trimtab
