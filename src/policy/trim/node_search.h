// SPDX-License-Identifier: Apache-2.0
// Simulated annealing over the placements of a layer on several nodes, which may have to keep to
// rules: for level load, or for fewer copies of tokens between nodes with peak loads that end
// within limits. On the way peaks may lie above their limits, at a price, since a level placement
// has few neighbours that are level too.
#pragma once

#include <atomic>
#include <cstdint>

#include "policy/trim/mutable_layer.h"
#include "policy/trim/rule_keeper.h"
#include "policy/trim/slot_exchanges.h"
#include "policy/trim/token_planes.h"
#include "policy/trim/wire_search.h"

namespace trimtab {

struct NodeGoal {
  PeakLimits limits;
  const RuleKeeper& rules;
  double move_price = 0;                    // what a move must gain, in copies per token, or PAR
  int64_t steps = 0;                        // exchanges that are tried
  const std::atomic<bool>* stop = nullptr;  // see Problem::stop
};

// Changes `layer` into the placement of least cost within the limits that the search finds, or
// leaves it as it is. planes: of the layer's tokens, as they were made. Null: what is above the
// limits is the cost, so that with limits of 0 the search levels the load.
void search_nodes(MutableLayer& layer, TokenPlanes* planes, SlotExchanges& exchanges,
                  const NodeGoal& goal);

}  // namespace trimtab
