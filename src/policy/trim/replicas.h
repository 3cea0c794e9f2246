// SPDX-License-Identifier: Apache-2.0
// These functions choose how many replicas each expert gets, and a first placement of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// The weighted mean plus `volatility` standard deviations of each expert's load over the episodes:
// [experts]. An expert that is hot only now and then needs replicas for those times, which its mean
// does not show.
std::vector<float> expert_demand(const Episodes& episodes, float volatility);

// Replicas among the searched slots: [experts], which sum to the slots. Every expert gets the
// fewest that are allowed, and spend_slots() gives away the rest.
std::vector<int32_t> choose_replicas(const LayerTask& task, std::span<const float> demand);

// Gives the slots that `replicas` leaves over one by one to the expert with the largest demand per
// replica (ties to the lower id). Experts whose demand per replica is above `largest`, or that have
// one replica on each rank with slots, get no more. False when no expert can take the next slot.
bool spend_slots(const LayerTask& task, std::span<const float> demand, float largest,
                 std::vector<int32_t>& replicas);

// A placement [searched slots] with these replicas and no expert twice on a rank. It takes the
// replicas in order of falling demand, and puts each on the rank whose soft peak over the episodes
// grows least. Source of the scheme: LPT (R. L. Graham, 1969), with the exponential potential in
// place of the load.
std::vector<int32_t> first_placement(const LayerTask& task, std::span<const int32_t> replicas,
                                     std::span<const float> demand);

// The same where every searched rank has two slots: the largest replica joins the smallest, the
// next joins the next, which is optimal but for replicas of one expert that would meet; those
// change places with their neighbours. Empty if some rank has another number of slots.
std::vector<int32_t> paired_placement(const LayerTask& task, std::span<const int32_t> replicas,
                                      std::span<const float> demand);

}  // namespace trimtab
