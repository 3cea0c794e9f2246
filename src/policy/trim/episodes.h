// SPDX-License-Identifier: Apache-2.0
// Condenses recorded steps into the few episodes that trim plans on, and into the history that it
// remembers.
#pragma once

#include "policy/trim/layer_task.h"
#include "trimtab/policy.h"

namespace trimtab {

// Episodes of one layer: the window in at most max_count runs of steps and, before them, what
// `history` remembers (null: nothing). An episode weighs as much as its steps; those without tokens
// are left out, so that count may be 0.
Episodes layer_episodes(const Load& window, const History* history, int layer, int max_count,
                        int num_ranks);

// Moves every load away from its mean over the episodes by this factor (not below 0). Averaging
// steps into episodes dampens swings that single steps, and later loads, show in full.
void exaggerate(Episodes& episodes, float factor);

// The episodes as one: the weighted mean of each expert's loads.
Episodes mean_episode(const Episodes& episodes);

// Returns the history to hand on: the old one, aged by the window's steps (weights halve every
// half_life steps), and the window in runs of about run_steps steps; at most max_episodes in all,
// the oldest dropped.
History remember(const History* history, const Load& window, double half_life, int64_t run_steps,
                 int64_t max_episodes);

}  // namespace trimtab
