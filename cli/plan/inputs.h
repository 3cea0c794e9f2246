// SPDX-License-Identifier: Apache-2.0
// The recordings and placements that the planning commands read.
#pragma once

#include <string>
#include <vector>

#include "cli/plan/planning_options.h"
#include "trimtab/recordings.h"

namespace trimtab::cli {

// Throws Error.
Recording read_loads(const LoadsOptions& options);

// How to read a placement: its format, as given or detected, and its ranks, 0 where the file says
// them. Throws Error, also when the file leaves the ranks open.
PlacementOptions placement_options(const std::string& file, const std::string& format, int ranks);

// The same, and reads it. loads: what it must fit, or null.
PlacementFile read_placement_for(const std::string& file, const std::string& format, int ranks,
                                 const Recording* loads);

// The sampled tokens of a recording, or null where it has none. They say where tokens come from
// only if they were recorded on as many ranks.
const TokenSample* tokens_of(Recording& loads, int num_ranks);

// The layers of loads and placement under the numbers of the file that has any: most formats only
// count from 0. Throws InvalidArgument when both have numbers of their own that differ.
std::vector<int> common_layer_ids(const Recording& loads, const PlacementFile& placement,
                                  const std::string& file);

// Refuses more slots than any format holds, before memory is taken for them. Throws
// InvalidArgument.
void check_slots(int ranks, int slots_per_rank);

}  // namespace trimtab::cli
