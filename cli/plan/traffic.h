// SPDX-License-Identifier: Apache-2.0
// The traffic of a step, from rank to rank, as `trimtab inspect`, `plan` and `check` show it. It
// follows from the tokens of a recording; those that list only loads have none.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan/wire_options.h"
#include "trimtab/recordings.h"
#include "trimtab/report.h"
#include "trimtab/traffic.h"

namespace trimtab::cli {

struct StepTraffic {
  // One placement, with what all layers of a step send under it, in copies of tokens.
  struct State {
    std::string name;  // e.g. "before"
    Traffic copies;
    double rank_copies_between_nodes = 0;
    double cost = 0;  // prices x copies to ranks, where the topology has prices
  };
  std::vector<State> states;
  Topology topology;
  int64_t token_bytes = 0;        // 0: not known
  double tokens_per_step = 0;     // of all ranks
  int64_t sampled = 0, seen = 0;  // tokens that were looked at, and those of the recording
  bool sources_recorded = false;  // else every rank sends the same part of each token
};

struct NamedPlacement {
  std::string name;
  const Placement& placement;
};

// tokens: those of the recording, or null. The placements have the same ranks. None where there are
// no tokens, or counts of pairs in their place.
std::optional<StepTraffic> step_traffic(const Recording& loads, const TokenSample* tokens,
                                        const WireOptions& options, const Topology& topology,
                                        const std::vector<NamedPlacement>& placements);

// The value of the key "traffic". With several states each has an object of its name.
nlohmann::ordered_json traffic_json(const StepTraffic& traffic);
// A table of the sums, and the matrix of the last state where it fits on a screen.
std::string traffic_text(const StepTraffic& traffic);
// Gives the report's states, which are the same as those of the traffic, their matrices, and adds a
// headline and definitions.
void add_traffic(const StepTraffic& traffic, Report& report);

// What to say where somebody asks for nodes, prices or bytes and the recording has no tokens.
// Empty: nobody did. loads: null where none were given.
std::string no_traffic_text(const WireOptions& options, const Recording* loads);

}  // namespace trimtab::cli
