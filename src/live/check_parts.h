// SPDX-License-Identifier: Apache-2.0
// Checks what a Balancer is given, before a peer hears of it.
#pragma once

#include "trimtab/balancer.h"

namespace trimtab {

// Throws InvalidArgument, with the values, where the configuration is impossible or the parts do
// not fit it, the group or each other.
void check_parts(const BalancerConfig& config, const Balancer::Parts& parts,
                 const Communicator& comm);

}  // namespace trimtab
