// SPDX-License-Identifier: Apache-2.0
// trim's plan for one layer: several starts, counts of copies, exchanges, the best of all by PAR and price of moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/policy/exchange_search.h"
#include "eplb/policy/layer_task.h"

namespace trimtab {

struct Effort {
  int max_episodes = 32;
  int sweeps = 20;                // of the heat bath for each start
  int copy_iterations = 1000;     // packings tried where slots are tight
  int64_t exact_nodes = 1'000'000;  // steps of the exact search of a small layer
  double target = 1.0009;         // peak of a single load vector that is good enough
  float volatility = 4;           // standard deviations in an expert's demand
};

// Map of the searched slots with the least mean peak over the episodes plus price of moves. current: what these slots
// hold now, or empty where the full ranks make that meaningless. Deterministic.
std::vector<int32_t> plan_layer(const LayerTask& task, std::span<const int32_t> current, const Effort& effort,
                                const Noise& noise);

}  // namespace trimtab
