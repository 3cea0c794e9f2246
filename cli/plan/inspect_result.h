// SPDX-License-Identifier: Apache-2.0
// What an inspection finds, for the reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/plan/inspect.h"
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
  std::optional<Drift> drift;      // of two windows or more
  std::vector<HotExpert> hottest;  // most loaded first
};

struct Inspection {
  std::string format;
  int ranks = 0;
  int64_t window = 0;
  int64_t tokens = 0;  // of all layers
  std::vector<InspectedLayer> layers;
};

// Where the experts are: as in --current, else in order.
PlacementFile placement_of(const InspectOptions& options, const Recording& loads);

Inspection summarize(const InspectOptions& options, const Recording& loads,
                     const PlacementFile& file);

// The page of --report.
Report page_report(const InspectOptions& options, const Recording& loads,
                   const Placement& placement, const Inspection& result);

}  // namespace trimtab::cli
