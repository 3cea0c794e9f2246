// SPDX-License-Identifier: Apache-2.0
// The page of `trimtab replay --report`: collects what each policy did, window by window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/replay.h"
#include "trimtab/report.h"

namespace trimtab::cli {

class ReplayReport {
 public:
  // start: what all policies start from.
  ReplayReport(const ReplayOptions& options, const Recording& loads, const Placement& start);

  // How level `start` is on each window from the second: mean PAR over steps and layers, and the worst. All before
  // add().
  void add_start(double par, double worst);

  // A policy has planned `placement` with `moves`, and it was measured on the window `now`, with par and worst as
  // for start. Windows in order; the next policy when all are through.
  void add(const std::string& policy, const Placement& placement, int64_t moves, const Load& now, double par,
           double worst);

  // policies: the results as --json has them, one row a policy, its mean PAR first.
  Report finish(ReportTable policies);

 private:
  Report report_;
  int64_t windows_;  // measured ones, the second and later
};

}  // namespace trimtab::cli
