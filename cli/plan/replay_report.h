// SPDX-License-Identifier: Apache-2.0
// The page of `trimtab replay --report`: collects what each policy did, window by window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plan/replay.h"
#include "trimtab/replay.h"
#include "trimtab/report.h"

namespace trimtab::cli {

class ReplayReport {
 public:
  // start: what all policies start from.
  ReplayReport(const ReplayOptions& options, const Recording& loads, const PlacementFile& start);

  // `placement` was measured on the next window. Windows in order; the next name when all are
  // through, first kStart, the start itself on the same windows. moves: of the plan that gave the
  // placement; -1: nothing was planned.
  void add(const std::string& name, const Placement& placement, int64_t moves,
           const WindowLevel& level);

  static constexpr const char* kStart = "start";

  // policies: the results as --json has them, one row a policy, its mean PAR first.
  Report finish(ReportTable policies);

 private:
  Report report_;
  int64_t windows_;  // measured ones, the second and later
};

}  // namespace trimtab::cli
