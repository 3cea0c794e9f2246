// SPDX-License-Identifier: Apache-2.0
// The frame that all policies share. A policy checks its Problem and proposes a placement, and
// finish_plan makes the Plan: experts that stay keep their slots, limits hold, and every number is
// computed here from the loads, the same way for all policies.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "trimtab/policy.h"

namespace trimtab {

// Throws InvalidArgument unless the sizes fit each other, every count is >= 0, every layer's sum
// over the window fits in int64 (layer, step and expert are named), limits are >= 0, topology and
// history match.
void validate(const Problem& problem);

// For policies that know no rules for nodes: throws InvalidArgument where the problem has some that
// mean something.
void refuse_rules(const Problem& problem, std::string_view policy);

struct FinishOptions {
  // Rename the ranks of the proposal (within a node, and whole nodes, when the topology has
  // several; only among ranks with equally many slots) so that as few weights as possible move. The
  // loads only change places.
  bool align_ranks = true;
  bool align_slots = true;  // an expert that stays on its rank stays in its slot
  // Keep the placement of a layer whose mean per-step PAR the proposal does not lower.
  bool require_gain = true;
  // Other placements of a layer [slots], mostly with fewer moves than the proposal's; called where
  // limits over all layers do not let every layer have its proposal, and for the curve. The frame
  // adds what lies on the way to the proposal, and chooses among all of them over the layers by
  // what they gain.
  std::function<std::vector<std::vector<int32_t>>(int layer)> alternatives = nullptr;
  // What a placement of a layer costs, where the policy judges by more than the window; only
  // differences count. Null: the frame goes by the mean PAR of a step, or with a cost model by the
  // seconds of a step.
  std::function<double(int layer, std::span<const int32_t> placement)> cost = nullptr;
};

// proposal: [layers][slots], logical ids, numbered like `problem.current`. Whatever the policy, a
// layer without load, or that is level in every step already, keeps its placement. Throws
// InvalidArgument when an id is out of range or an expert has no slot (a policy's mistake).
// `problem` must have passed validate().
Plan finish_plan(const Problem& problem, std::vector<int32_t> proposal,
                 const FinishOptions& options = {});

// The loads of one layer summed over the window: [experts].
std::vector<int64_t> window_load(const Load& load, int layer);

}  // namespace trimtab
