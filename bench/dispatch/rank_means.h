// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "trimtab/communicator.h"

namespace trimtab::bench {

// Replaces each value by its mean over the ranks. Collective.
void take_means_over_ranks(Communicator& comm, std::span<double> values);

}  // namespace trimtab::bench
