// SPDX-License-Identifier: Apache-2.0
// Simulated annealing over the placements of a layer for cheaper copies of tokens between ranks,
// within limits on peak loads.
#pragma once

#include "policy/trim/mutable_layer.h"
#include "policy/trim/slot_exchanges.h"
#include "policy/trim/wire_search.h"

namespace trimtab {

// Changes `layer` into the cheapest placement within the limits that the search finds. The topology
// has prices.
void search_prices(const WireTask& task, const PeakLimits& limits, MutableLayer& layer,
                   SlotExchanges& exchanges);

}  // namespace trimtab
