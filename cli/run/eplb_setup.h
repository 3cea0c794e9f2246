// SPDX-License-Identifier: Apache-2.0
// What `trimtab run --eplb` means for a model and its ranks: the placement that the run begins
// with, and how it balances.
#pragma once

#include <optional>
#include <string>

#include "cli/run/eplb_mode.h"
#include "cli/run/run_options.h"
#include "trimtab/balancer.h"
#include "trimtab/checkpoint.h"
#include "trimtab/layout.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"

namespace trimtab::cli {

struct EplbSetup {
  EplbMode mode;
  BalancerConfig config;
  Placement start;
  SplitRule split = SplitRule::kStatic;  // chooses the replica of a pick

  bool has_replicas() const { return start.num_slots() > start.num_experts(); }
};

// Throws InvalidArgument for a placement that is not for this model and these ranks and for
// impossible numbers; UsageError for what a layout with parts of experts does not do; FormatError
// for files.
EplbSetup set_up_eplb(const RunOptions& options, const ModelConfig& model, int ranks,
                      const std::optional<ParallelLayout>& layout);

}  // namespace trimtab::cli
