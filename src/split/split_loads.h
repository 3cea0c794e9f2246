// SPDX-License-Identifier: Apache-2.0
// What the rank loads of recorded steps would be under a placement and a split rule.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "trimtab/rank_loads.h"
#include "trimtab/split.h"

namespace trimtab {

// How the tokens of an expert reach its replicas: by a rule, as whole tokens, or, without one,
// equally, fractions of tokens included, as most policies assume.
using Sharing = std::optional<SplitRule>;
// "equal", or the name of a rule. Throws InvalidArgument listing the names.
Sharing parse_sharing(std::string_view name);

// How the tokens of a placement's layers are shared out where it serves, and what rows cost there.
struct Serving {
  Sharing sharing = {};
  const CostModel* cost = nullptr;             // null: rows; kTime needs one
  std::span<const int32_t> node_of_rank = {};  // [ranks], or empty: all on one node
};

// The tokens of one layer, which is layer 0 of the result. With a rule, the tokens of a step are
// those of one batch; they come from all ranks equally, the odd ones in turn. A step in which a
// rank would send one expert 2^31 tokens or more is computed with 2, 4, ... tokens as one. Throws
// InvalidArgument when the sizes do not fit, and as check_cost().
RankLoads rank_loads(const Placement& placement, const Load& load, int layer,
                     const Serving& serving);
// The same where the placement's layer has another number than the load's.
RankLoads rank_loads(const Placement& placement, int placement_layer, const Load& load,
                     int load_layer, const Serving& serving);

// The same in time: the seconds that each rank takes by serving.cost (split_rank_times), so that
// par() of them is the PAR in time. Shared out equally means as by kRoundRobin, since a cost model
// knows whole rows only. Throws InvalidArgument also when there is no cost model.
RankLoads rank_times(const Placement& placement, const Load& load, int layer,
                     const Serving& serving);
RankLoads rank_times(const Placement& placement, int placement_layer, const Load& load,
                     int load_layer, const Serving& serving);

// The seconds that each rank would have in each step if all ranks shared evenly in a layer whose
// experts each keep all their tokens together: [steps]. With few rows no placement needs less.
std::vector<double> mean_times(const Load& load, int layer, const CostModel& cost, int num_ranks);

// How level each step is: [steps]. In rows the PAR; with a cost model the busiest rank's time over
// mean_times(): the PAR in time would also fall where replicas only add work to other ranks. A step
// without tokens counts 1.
std::vector<double> served_pars(const Placement& placement, int placement_layer, const Load& load,
                                int load_layer, const Serving& serving);

// The PAR of each step of one layer when kSplit shares its tokens out: [steps]. The peak is the
// least that whole tokens allow, whoever sends them and wherever the nodes are, so this takes a
// fraction of the time of rank_loads(). Steps may have any number of tokens. Throws InvalidArgument
// when the sizes do not fit.
std::vector<double> split_pars(const Placement& placement, const Load& load, int layer);
// The same where the placement's layer has another number than the load's.
std::vector<double> split_pars(const Placement& placement, int placement_layer, const Load& load,
                               int load_layer);

}  // namespace trimtab
