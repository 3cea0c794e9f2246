// SPDX-License-Identifier: Apache-2.0
// How many copies each expert gets, and a first map for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/layer_task.h"

namespace trimtab {

// Weighted mean plus `volatility` standard deviations of each expert's load over the episodes:
// [experts]. An expert that is hot only now and then needs copies for those times; its mean hides
// that.
std::vector<float> expert_demand(const Episodes& episodes, float volatility);

// Copies among the searched slots: [experts], sum = slots: the fewest that are allowed, the rest by
// spend_slots().
std::vector<int32_t> choose_copies(const LayerTask& task, std::span<const float> demand);

// Gives the slots that `copies` leaves over one by one to the expert with the largest demand per
// copy (ties to the lower id) of those where it is at most `largest`; at most one per rank with
// slots. False when no expert can take the next.
bool spend_slots(const LayerTask& task, std::span<const float> demand, float largest,
                 std::vector<int32_t>& copies);

// A map [searched slots] with these copies, no expert twice on a rank: copies in order of falling
// demand, each to the rank whose soft peak over the episodes grows least. Source of the scheme: LPT
// (R. L. Graham, 1969), with the exponential potential in place of the load.
std::vector<int32_t> first_map(const LayerTask& task, std::span<const int32_t> copies,
                               std::span<const float> demand);

// The same where every searched rank has two slots: the largest copy with the smallest, the next
// with the next, which is optimal but for copies of one expert that would meet; those trade places
// with their neighbours. Empty if some rank has another number of slots.
std::vector<int32_t> paired_map(const LayerTask& task, std::span<const int32_t> copies,
                                std::span<const float> demand);

}  // namespace trimtab
