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

#include "live/rank_speeds.h"
#include "trimtab/cost_model.h"
#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/rank_loads.h"

namespace trimtab {

// Of recorded steps those of the phase (none: all), in at most max_episodes parts, and the rows of
// all steps that were kept so far. Seven bits a byte, so that small counts, which most are, take
// one. Never empty. Throws InvalidArgument for a slot whose rows are negative, since the count of a
// step did not fit in 32 bits.
// cost: with one, also one step of each part by itself, where parts are several steps, and the time
// that the rank's experts took in all of them beside what the model says of their rows; or null.
std::vector<std::byte> pack_window(const RecordedSteps& steps, std::optional<Phase> phase,
                                   int64_t max_episodes, const CostModel* cost = nullptr);

struct Window {
  Load load;             // its steps are the parts
  Load single;           // the last step of each part by itself; without steps where not packed
  RankLoads rank_loads;  // what the ranks really got: [parts, layers, ranks]
  // What the ranks took for it by the cost, in picoseconds, in single steps: [steps, layers,
  // ranks]. Without a cost it has no steps.
  RankLoads rank_times;
  // The rows that each rank has got since it began, in all steps that were kept: [ranks]. Steps
  // between two windows count here too.
  std::vector<int64_t> rank_rows;
  // What the experts of each rank took in the window's steps: [ranks].
  std::vector<RankTime> times;
};

// packed: [ranks], recorded under this placement; empty from a rank that could not pack its own.
// cost: for rank_times, or null. Throws InvalidArgument for such a rank, and when they do not fit
// the placement or each other.
Window unpack_windows(const Placement& placement, std::span<const std::vector<std::byte>> packed,
                      const CostModel* cost = nullptr);

}  // namespace trimtab
