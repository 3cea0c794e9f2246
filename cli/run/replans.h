// SPDX-License-Identifier: Apache-2.0
// Collects the replans of a run from the events of live balancing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/metrics.h"
#include "trimtab/report.h"

namespace trimtab::cli {

// [steps]: moves of the layers that were switched at a step; -1 where none was.
std::vector<int64_t> moves_at(std::span<const BalanceEvent> events, int64_t num_steps);

// One for each event that is about a whole plan, and for each layer that was rolled back.
std::vector<ReportMark> replan_marks(std::span<const BalanceEvent> events);

// A row for each plan: what it promised, what became of it. events: in the order in which they
// happened; one plan at a time is under way.
ReportTable replan_table(std::span<const BalanceEvent> events);

}  // namespace trimtab::cli
