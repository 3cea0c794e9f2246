// SPDX-License-Identifier: Apache-2.0
// Sorts messages between ranks into rounds. In each round a rank sends at most one message and
// receives at most one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

struct Route {
  int32_t from, to;  // ranks
};

// Returns the round of each route, counted from 0: [routes]. There are as many rounds as the
// busiest rank sends or receives messages, the fewest that can be (Koenig: a bipartite graph's
// edges take as many colours as its largest degree). Deterministic.
std::vector<int32_t> rounds(std::span<const Route> routes, int num_ranks);

}  // namespace trimtab
