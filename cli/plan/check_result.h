// SPDX-License-Identifier: Apache-2.0
// What a check finds, for the reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/plan/check.h"
#include "trimtab/par.h"
#include "trimtab/report.h"

namespace trimtab::cli {

struct CheckResult {
  std::string format;
  std::vector<int> layer_ids;
  std::vector<int> slots_per_rank;
  std::vector<int64_t> duplicates;  // [layers]
  std::vector<Levelness> levels;    // [layers]; empty without loads
};

// loads: what the ranks are measured with; null: they are not.
CheckResult summarize(const CheckOptions& options, const PlacementFile& file,
                      const Recording* loads);

// The page of --report.
Report page_report(const CheckOptions& options, const PlacementFile& file, const Recording* loads,
                   const CheckResult& result);

}  // namespace trimtab::cli
