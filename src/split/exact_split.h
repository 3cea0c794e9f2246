// SPDX-License-Identifier: Apache-2.0
// The rule `split`: sums the batch, asks peak_flow what each replica gets, and fills that from the
// sources: first from the replica's rank, then from its node, then from anywhere.
#pragma once

#include <cstdint>
#include <span>

#include "split/peak_flow.h"
#include "trimtab/split.h"
#include "trimtab/workspace.h"

namespace trimtab {

// As split_tokens; the arguments are checked and shares are all 0.
void exact_split(const SplitTable& table, std::span<const int32_t> counts, Workspace& workspace,
                 std::span<int32_t> shares);

size_t exact_split_bytes(const SplitSizes& sizes);

}  // namespace trimtab
