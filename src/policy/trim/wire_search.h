// SPDX-License-Identifier: Apache-2.0
// The search for a placement of one layer whose copies of tokens cost less on the wires, or,
// without prices, that sends less between nodes. It starts from a plan that is level and keeps its
// peak loads within limits, so that the order is level first, then wires.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/trim/mutable_layer.h"
#include "policy/trim/rule_keeper.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/traffic.h"

namespace trimtab {

// More nodes than this are not searched.
constexpr int kMostWireNodes = 64;
// With prices a token has a bit for each rank that it reaches from each source. A source is a rank
// of its own where the bits of a token are at most so many, else a node where they are at most
// kMostWireBits, else all sources are one, by the mean of their prices. Where sources are known, a
// token has those of its own alone, and kMostWireBits bounds the memory.
constexpr int kMostBitsOfToken = 256;
constexpr int kMostWireBits = 8192;

struct WireTask {
  SlotRanges slots;
  const RuleKeeper& rules;   // to which the start keeps
  const Topology& topology;  // several nodes, or prices
  const TokenSample& tokens;
  int layer = 0;
  // Loads that must stay level, each [experts]: first that of the whole window, then runs of steps,
  // or none.
  const std::vector<std::vector<double>>& loads;
  // The peak of the window, and the mean peak of the runs, may exceed those of the start by this
  // part.
  double slack = 0;
  // What each weight that `current` does not have on its rank must gain, in copies per token
  // between nodes, or in copies per token of the highest price; and the placement that counts as
  // current. 0 and empty: moves are free.
  double move_price = 0;
  std::span<const int32_t> current = {};
  int64_t max_tokens = 0;                   // of the sample that are looked at, spread evenly
  int64_t steps = 0;                        // exchanges that are tried
  const std::atomic<bool>* stop = nullptr;  // see Problem::stop
};

// The peaks that a plan may have.
struct PeakLimits {
  PeakLimits() = default;
  PeakLimits(const MutableLayer& layer, double slack)
      : window(layer.window_peak() * (1 + slack)), runs(layer.runs_peak() * (1 + slack)) {}
  bool hold(const MutableLayer& layer) const {
    return layer.window_peak() <= window && layer.runs_peak() <= runs;
  }
  double window = 0, runs = 0;
};

// start: [slots]. Returns the best placement found, or the start. The result depends on nothing but
// the arguments.
std::vector<int32_t> search_wires(const WireTask& task, std::vector<int32_t> start);

}  // namespace trimtab
