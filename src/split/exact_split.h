// SPDX-License-Identifier: Apache-2.0
// The rules `split` and `time`: they sum the batch, ask peak_flow or time_flow what each replica
// gets, and fill that from the sources: first from the replica's rank, then from its node, then
// from anywhere.
#pragma once

#include <cstdint>
#include <span>

#include "split/peak_flow.h"
#include "trimtab/cost_model.h"
#include "trimtab/split.h"
#include "trimtab/workspace.h"

namespace trimtab {

// As split_tokens; the arguments are checked and shares are all 0. cost: null for the rule `split`.
void exact_split(const SplitTable& table, std::span<const int32_t> counts, const CostModel* cost,
                 Workspace& workspace, std::span<int32_t> shares);

size_t exact_split_bytes(const SplitSizes& sizes);

}  // namespace trimtab
