// SPDX-License-Identifier: Apache-2.0
// What a layer map means for the ranks: copies, loads and PAR, of a window and of each step. Every
// expert's tokens are shared equally among its slots. All sums run in slot order, so that the same
// numbers come out everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/load.h"

namespace trimtab {

// Copies of each expert in a layer map: [experts].
std::vector<int32_t> replica_counts(std::span<const int32_t> map, int num_experts);

// Slots that hold an expert which a lower slot of their rank holds.
int64_t duplicate_slots(std::span<const int32_t> map, std::span<const int32_t> first_slots);

// The loads of one layer summed over the steps [first, last): [experts].
std::vector<int64_t> sum_of_steps(const Load& load, int layer, int64_t first, int64_t last);

// Loads of the ranks: [ranks]. map: [slots]; first_slots: [ranks + 1]; expert_load: [experts].
std::vector<double> rank_loads(std::span<const int32_t> map, std::span<const int32_t> first_slots,
                               std::span<const int64_t> expert_load);

// max / mean; 1 when nothing was routed.
double peak_to_mean(std::span<const double> loads);

// PAR of each step of one layer: [steps]. Steps without tokens count 1.
std::vector<double> step_pars(std::span<const int32_t> map, std::span<const int32_t> first_slots,
                              const Load& load, int layer);

}  // namespace trimtab
