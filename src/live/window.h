// SPDX-License-Identifier: Apache-2.0
// A window of recorded steps on its way to the rank that plans: every rank packs what its own slots
// got, in parts of consecutive steps, and from all of them come the loads of the logical experts
// and of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/rank_loads.h"

namespace trimtab {

// Of the recorder's last `steps` steps those of the phase (none: all), in at most max_episodes
// parts, and the rows of all steps that it has kept so far. Seven bits a byte, so that small
// counts, which most are, take one. Never empty. Throws InvalidArgument when the recorder has fewer
// steps, and for a slot whose rows are negative, since the count of a step did not fit in 32 bits.
std::vector<std::byte> pack_window(const LoadRecorder& recorder, int64_t steps,
                                   std::optional<Phase> phase, int64_t max_episodes);

struct Window {
  Load load;             // its steps are the parts
  RankLoads rank_loads;  // what the ranks really got: [parts, layers, ranks]
  // The rows that each rank has got since it began, in all steps that were kept: [ranks]. Steps
  // between two windows count here too.
  std::vector<int64_t> rank_rows;
};

// packed: [ranks], recorded under this placement; empty from a rank that could not pack its own.
// Throws InvalidArgument for such a rank, and when they do not fit the placement or each other.
Window unpack_windows(const Placement& placement, std::span<const std::vector<std::byte>> packed);

}  // namespace trimtab
