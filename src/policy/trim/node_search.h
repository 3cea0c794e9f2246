// SPDX-License-Identifier: Apache-2.0
// Simulated annealing over the placements of a layer on several nodes: fewer copies of tokens
// between nodes, with peak loads that end within limits. On the way peaks may lie above their
// limits, at a price that rises, since a level placement has few neighbours that are level too.
#pragma once

#include <cstdint>

#include "policy/trim/mutable_layer.h"
#include "policy/trim/slot_exchanges.h"
#include "policy/trim/token_planes.h"
#include "policy/trim/wire_search.h"

namespace trimtab {

struct NodeGoal {
  PeakLimits limits;
  double move_price = 0;                    // copies per token that a move must gain
  int64_t steps = 0;                        // exchanges that are tried
  const std::atomic<bool>* stop = nullptr;  // see Problem::stop
};

// Changes `layer` into the placement of least cost within the limits that the search finds, or
// leaves it as it is. planes: of the layer as it is.
void search_nodes(MutableLayer& layer, TokenPlanes& planes, SlotExchanges& exchanges,
                  const NodeGoal& goal);

}  // namespace trimtab
