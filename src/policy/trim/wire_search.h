// SPDX-License-Identifier: Apache-2.0
// The search for a placement of one layer that sends less between nodes. It starts from a plan that
// is level and keeps its peak loads within limits, so that the order is level first, then wires.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/slot_ranges.h"
#include "trimtab/traffic.h"

namespace trimtab {

// Bits for the nodes that a token reaches: for each source node a row of as many bits as there are
// nodes. More nodes than this are not searched.
constexpr int kMostWireNodes = 64;

struct WireTask {
  SlotRanges slots;
  std::span<const int32_t> node_of_rank;  // [ranks], at least two nodes
  const TokenSample& tokens;
  int layer = 0;
  // Loads that must stay level, each [experts]: first that of the whole window, then runs of steps,
  // or none.
  const std::vector<std::vector<double>>& loads;
  // The peak of the window, and the mean peak of the runs, may exceed those of the start by this
  // part.
  double slack = 0;
  // Copies per token between nodes that each weight which `current` does not have on its rank must
  // gain, and the placement that counts as current; 0 and empty: moves are free.
  double move_price = 0;
  std::span<const int32_t> current = {};
  int64_t max_tokens = 0;  // of the sample that are looked at, spread evenly
  int64_t steps = 0;       // exchanges that are tried
};

// start: [slots]. Returns the best placement found, or the start. The result depends on nothing but
// the arguments.
std::vector<int32_t> search_wires(const WireTask& task, std::vector<int32_t> start);

}  // namespace trimtab
