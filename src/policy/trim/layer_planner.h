// SPDX-License-Identifier: Apache-2.0
// This is trim's plan for one layer: it searches from several starts, over the numbers of replicas
// and by exchanges, and takes the best of all by PAR and price of moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/exchange_search.h"
#include "policy/trim/layer_task.h"

namespace trimtab {

struct Effort {
  int max_episodes = 48;
  int sweeps = 24;  // sweeps of the heat bath for each start
  // Visits of rank pairs by one heat bath: where ranks are very many, there are fewer sweeps.
  int64_t max_visits = 1'000'000;
  bool all_families = true;         // search_replicas() tries all families
  int replica_iterations = 1500;    // packings tried where slots are tight
  int64_t proof_nodes = 1'000'000;  // steps of the branch and bound of a small layer
  double target = 1.0009;           // peak of a single load vector that is good enough
  // Peak of a single load vector above which other numbers of replicas are sought. Below it what
  // they gain in the window, larger replicas lose later.
  double replicas_above = 1.003;
  // With several episodes, the peak of their mean above which other numbers of replicas are sought.
  double mean_above = 1.02;
  float volatility = 4;  // standard deviations in an expert's demand
  // If above the task's: the price of a move where the current placement is within a few percent of
  // the best anyway.
  double near_price = 0;
  // Placements, times slots and steps, that a search under the rule that serves may estimate.
  int64_t served_estimates = 3'000'000;
  // Loads of a rank in an episode that a search by single moves may compute.
  int64_t grow_work = 100'000'000;
  // The same in every plan of a layer that is so small that this tries every change.
  int64_t small_grow_work = 5'000'000;
  int64_t node_steps = 100'000;  // exchanges tried for plans that keep to rules for nodes
  // For the traffic between nodes: exchanges tried, and the most of them times slots, the same by
  // prices, sampled tokens looked at, and runs of steps whose mean peak is kept.
  int64_t wire_steps = 200'000;
  int64_t wire_work = 20'000'000;
  int64_t price_steps = 30'000;
  int64_t wire_tokens = 4'096;
  int64_t wire_runs = 48;
  // If > 0: search from each start with twice the sweeps each time, as long as its part of this
  // lasts. It replaces `sweeps` and `max_visits`.
  double seconds = 0;
  const std::atomic<bool>* stop = nullptr;  // see Problem::stop
};

// The limits on the moves of one layer.
struct LayerLimits {
  int64_t max_moves = 0;
  int64_t max_receive = 0;  // by one rank
};

// Returns the placement of the searched slots with the least mean peak over the episodes plus price
// of moves: within the limits if the search finds one there that beats the current placement,
// otherwise the best without limits. current: what these slots hold now, or empty where the full
// ranks make that meaningless. The result is deterministic unless effort.seconds is set.
std::vector<int32_t> plan_layer(const LayerTask& task, std::span<const int32_t> current,
                                const Effort& effort, const LayerLimits& limits,
                                const Noise& noise);

}  // namespace trimtab
