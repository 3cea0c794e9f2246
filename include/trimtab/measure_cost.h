// SPDX-License-Identifier: Apache-2.0
// Measures what the experts of a layer cost on this machine, at start, in a few hundredths of a
// second.
#pragma once

#include <cstdint>

#include "trimtab/communicator.h"
#include "trimtab/cost_model.h"
#include "trimtab/experts.h"

namespace trimtab {

struct CostEffort {
  double seconds = 0.05;    // of measuring; what takes longer is left out, but for 1 and 16 rows
  int64_t most_rows = 256;  // of an expert
};

// Runs the experts of this rank, in turn, with 1 row each, 16, 64 and numbers between and beyond as
// time allows, and takes the least time of each number. Meant for a machine that does nothing else
// meanwhile. Throws InvalidArgument where the rank has no experts.
CostModel measure_cost(const Experts& experts, Team& team, const CostEffort& effort = {});

// Gives every rank the model that rank 0 has; the others may have none. Collective. The speeds of
// ranks are taken along.
CostModel broadcast_cost(Communicator& comm, const CostModel* cost);

}  // namespace trimtab
