// SPDX-License-Identifier: Apache-2.0
// How many tokens each replica of a shared expert should get, so that the largest rank time by a
// cost model is as low as can be found in a bounded number of steps.
#pragma once

#include <cstdint>
#include <span>

#include "split/peak_flow.h"
#include "trimtab/cost_model.h"

namespace trimtab {

// flow: [arcs], as peak_flow(). batch.fixed are times here: what the experts cost that live on this
// rank only. Returns the largest rank time.
//
// Opening a replica costs the reading of its weights, so the problem is NP-hard (scheduling with
// setup times) and this is a search, not a proof. It begins with every expert whole on one rank
// where that keeps the rank near a lower bound of the peak, else spread over its ranks. Then it
// aims at peaks between the bound and the best one found, half way each time: ranks above the aim
// hand work on, to a rank with room or along a chain of ranks that each hand on as much as they
// would be over (an ejection chain), which may come back to the first. When a replica costs the
// same for any number of tokens this is the augmenting path of bipartite matching and finds the
// optimum; when tokens cost the same whoever takes them it is an augmenting path of a flow. The
// number of steps is bounded by the size of the table, so a batch can't take long.
int64_t time_flow(const SplitTable& table, const BatchTotals& batch, const CostModel& cost,
                  Workspace& workspace, std::span<int64_t> flow);

size_t time_flow_bytes(const SplitSizes& sizes);

}  // namespace trimtab
