// SPDX-License-Identifier: Apache-2.0
// trim's plan for one layer: several starts, counts of copies, exchanges, the best of all by PAR
// and price of moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/exchange_search.h"
#include "policy/trim/layer_task.h"

namespace trimtab {

struct Effort {
  int max_episodes = 48;
  int sweeps = 24;  // of the heat bath for each start
  int64_t max_visits =
      1'000'000;  // of rank pairs by one heat bath: fewer sweeps where ranks are very many
  bool all_families = true;         // of search_copies()
  int copy_iterations = 1500;       // packings tried where slots are tight
  int64_t exact_nodes = 1'000'000;  // steps of the exact search of a small layer
  double target = 1.0009;           // peak of a single load vector that is good enough
  // Peak of a single load vector above which other numbers of copies are sought. Below it what they
  // gain in the window, larger replicas lose later.
  double copies_above = 1.003;
  float volatility = 4;  // standard deviations in an expert's demand
  // If above the task's: the price of a move where the current map is within a few percent of the
  // best anyway.
  double near_price = 0;
  // If > 0: search from each start with twice the sweeps each time, as long as its part of this
  // lasts. Stands in for `sweeps` and `max_visits`.
  double seconds = 0;
};

// What one layer may cost.
struct LayerLimits {
  int64_t max_moves = 0;
  int64_t max_receive = 0;  // by one rank
};

// Map of the searched slots with the least mean peak over the episodes plus price of moves, within
// the limits if the search finds one there that beats the current map; otherwise the best without
// them. current: what these slots hold now, or empty where the full ranks make that meaningless.
// Deterministic unless effort.seconds is set.
std::vector<int32_t> plan_layer(const LayerTask& task, std::span<const int32_t> current,
                                const Effort& effort, const LayerLimits& limits,
                                const Noise& noise);

}  // namespace trimtab
