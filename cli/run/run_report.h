// SPDX-License-Identifier: Apache-2.0
// The page of `trimtab run --report`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/run.h"
#include "cli/run/run_result.h"
#include "trimtab/load.h"
#include "trimtab/metrics.h"
#include "trimtab/rank_loads.h"
#include "trimtab/report.h"

namespace trimtab::cli {

// What a run leaves for its page, beside its result.
struct RunRecord {
  RankLoads loads;
  std::vector<int64_t> expert_load;  // [layers, experts] of all steps
  Placement start, end;
  std::vector<BalanceEvent> events;       // of rank 0, in the order of their steps
  std::optional<BalanceMetrics> metrics;  // at the end; none: the run did not balance
  std::string split = {};  // rule that shared tokens out over replicas; empty: each rank used one
};

// A run in three parts of as many steps to within one; none when it has fewer than three steps.
std::vector<StepRange> thirds(int64_t num_steps);

Report page_report(const RunOptions& options, const RunResult& result, const RunRecord& record);

}  // namespace trimtab::cli
