// SPDX-License-Identifier: Apache-2.0
// Says which experts of a layer have several slots.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/slot_ranges.h"

namespace trimtab {

// How many slots each expert has: [experts]. logical: [slots], the expert in each slot.
std::vector<int32_t> replica_counts(std::span<const int32_t> logical, int num_experts);

// How many slots hold an expert that a lower slot of their rank holds.
int64_t duplicate_slots(std::span<const int32_t> logical, SlotRanges slots);

}  // namespace trimtab
