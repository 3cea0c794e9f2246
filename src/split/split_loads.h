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

// One layer, which is layer 0 of the result. With a rule, the tokens of a step are those of one
// batch; they come from all ranks equally, the odd ones in turn. A step in which a rank would send
// one expert 2^31 tokens or more is computed with 2, 4, ... tokens as one. node_of_rank: [ranks],
// or empty: all on one node. Throws InvalidArgument when the sizes do not fit.
RankLoads rank_loads(const Placement& placement, const Load& load, int layer, Sharing sharing,
                     std::span<const int32_t> node_of_rank);

// The same in time: the seconds that each rank takes by a cost model (split_rank_times), so that
// par() of them is the PAR in time. Throws also as check_cost().
RankLoads rank_times(const Placement& placement, const Load& load, int layer, SplitRule rule,
                     const CostModel& cost, std::span<const int32_t> node_of_rank = {});

// The PAR of each step of one layer when kSplit shares its tokens out: [steps]. The peak is the
// least that whole tokens allow, whoever sends them and wherever the nodes are, so this takes a
// fraction of the time of rank_loads(). Steps may have any number of tokens. Throws InvalidArgument
// when the sizes do not fit.
std::vector<double> split_pars(const Placement& placement, const Load& load, int layer);

}  // namespace trimtab
