// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/wire_search.h"

#include <algorithm>
#include <utility>

#include "policy/trim/node_search.h"
#include "policy/trim/priced_search.h"
#include "policy/trim/slot_exchanges.h"
#include "policy/trim/token_planes.h"

namespace trimtab {
namespace {

// Goes on with exchanges that are judged by `cost` itself. move_cost: of one move, in the unit of
// `cost`.
template <class Cost>
void polish(MutableLayer& layer, SlotExchanges& exchanges, const PeakLimits& limits,
            const RuleKeeper& rules, const Cost& cost, double move_cost, int64_t tries) {
  double least = cost(layer.placement()) + move_cost * layer.moves();
  for (int64_t i = 0; i < tries; ++i) {
    if (exchanges.random().below(16) < 3 ? !exchanges.replica() : !exchanges.two_slots()) continue;
    layer.change(exchanges.changes());
    if (limits.hold(layer) && rules.holds(layer)) {
      const double now = cost(layer.placement()) + move_cost * layer.moves();
      if (now < least - 1e-12) {
        least = now;
        continue;
      }
    }
    layer.undo();
  }
}

}  // namespace

std::vector<int32_t> search_wires(const WireTask& task, std::vector<int32_t> start) {
  const bool prices = task.topology.has_prices();
  const std::span<const int32_t> current =
      task.move_price == 0 ? std::span<const int32_t>() : task.current;
  MutableLayer layer(task.slots, task.topology, task.tokens.num_experts, task.loads, current,
                     start);
  const PeakLimits limits(layer, task.slack);
  SlotExchanges exchanges(layer, 0x7472696d77697265U + static_cast<uint64_t>(task.layer));
  if (prices) {
    search_prices(task, limits, layer, exchanges);
  } else if (task.tokens.top_k <= kMostPicksOfPlanes) {
    TokenPlanes planes(task.tokens, task.layer, task.topology.node_of_rank,
                       task.topology.num_nodes(), task.max_tokens);
    search_nodes(layer, &planes, exchanges,
                 {.limits = limits,
                  .rules = task.rules,
                  .move_price = task.move_price,
                  .steps = task.steps,
                  .stop = task.stop});
  }
  // The searches count two replicas for all that a pick may go to, so the result is judged once
  // more as it is measured, and where that is cheap, it goes on so.
  const auto cost = [&](std::span<const int32_t> placement) {
    return prices ? cost_of_copies(placement, task.slots.firsts(), task.topology, task.tokens,
                                   task.layer)
                  : copies_between_nodes(placement, task.slots.firsts(), task.topology.node_of_rank,
                                         task.tokens, task.layer);
  };
  constexpr int64_t kPolishPicks = 20'000'000, kWorthwhile = 200;
  const int64_t picks = task.tokens.num_tokens() * task.tokens.top_k *
                        (task.tokens.source_rank.empty() ? 1 + task.topology.num_nodes() : 1);
  const int64_t tries = std::min(task.steps, kPolishPicks / std::max<int64_t>(1, picks));
  if (tries >= kWorthwhile) {
    const double unit = prices ? std::ranges::max(task.topology.prices) : 1;
    polish(layer, exchanges, limits, task.rules, cost, task.move_price * unit, tries);
  }
  return cost(layer.placement()) < cost(start) ? layer.placement() : start;
}

}  // namespace trimtab
