// SPDX-License-Identifier: Apache-2.0
// Takes a plan that was made for equal shares to the rule that serves. A rule that shares tokens
// out freely reaches the same level with fewer moves, and in small layers a better one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_planner.h"
#include "policy/trim/served_cost.h"

namespace trimtab {

struct ServedTask {
  const Placement& current;
  int layer = 0;
  const ServedSteps& steps;  // at least one
  Serving serving;
  double move_price = 0;  // PAR that a move must gain to pay for itself
  LayerLimits limits;
  // What searches may estimate: placements, times their slots, times steps. Where that is too
  // little for a search over all changes, there is no such search.
  int64_t estimates = 3'000'000;
};

// Returns the better of the current placement, the proposal, what is left of the proposal without
// the moves that the rule does not need, with a cost model what exchanges make of the best of
// these, and, in small layers, what a search over all changes of slots finds from the current
// placement. Whatever reaches the best of them to within a thousandth
// of PAR counts as reaching it, and of those the one with the fewest moves is taken. Only
// placements within the limits count, and the current one. proposal and result: [slots], with an
// expert that stays in its slot. Deterministic.
std::vector<int32_t> search_served(const ServedTask& task, std::vector<int32_t> proposal);

// Returns what such a search finds for fewer moves too, and which of `others` serve better: every
// placement that reaches a lower cost than all with fewer moves, by ascending moves. others:
// [slots] each, as the proposal.
std::vector<std::vector<int32_t>> served_frontier(const ServedTask& task,
                                                  std::vector<int32_t> proposal,
                                                  std::span<const std::vector<int32_t>> others);

}  // namespace trimtab
