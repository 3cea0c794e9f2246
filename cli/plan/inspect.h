// SPDX-License-Identifier: Apache-2.0
// `trimtab inspect` says what a recording holds, how uneven the ranks are under it, and how much of
// that is chance.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan/inputs.h"
#include "cli/plan/inspect_options.h"
#include "cli/plan/traffic.h"
#include "load/drift.h"
#include "trimtab/par.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct HotExpert {
  int expert = 0;
  double share = 0;  // of the layer's tokens
};

struct InspectedLayer {
  int id = 0;
  Levelness level;
  double noise_floor = 1;
  // With costs: mean PAR of a step in time, and the seconds of its busiest rank.
  double par_time = 0, step_seconds = 0;
  std::optional<Drift> drift;      // none: the recording has less than two windows
  std::vector<HotExpert> hottest;  // most loaded first
};

struct Inspection {
  std::string format;
  int ranks = 0;
  int64_t window = 0;
  int64_t tokens = 0;  // of all layers
  ServedBy served;
  std::vector<InspectedLayer> layers;
  Topology topology;
  std::optional<StepTraffic> traffic;  // none: the recording has no tokens
};

// Where the experts are: as in --current, else in order.
PlacementFile inspected_placement(const InspectOptions& options, const Recording& loads);
Inspection inspect_loads(const InspectOptions& options, Recording& loads,
                         const PlacementFile& file);
// The page of --report.
Report inspect_page(const InspectOptions& options, const Recording& loads,
                    const Placement& placement, const Inspection& result);

// Writes to standard output. Throws Error.
void inspect(const InspectOptions& options);

}  // namespace trimtab::cli
