// SPDX-License-Identifier: Apache-2.0
// The options that say how tokens reach the replicas of a placement where it serves, and what rows
// cost there.
#pragma once

#include <optional>
#include <string>

#include "cli/options/command.h"
#include "split/split_loads.h"

namespace trimtab::cli {

struct ServingOptions {
  std::string split = "equal";  // or the name of a SplitRule
  std::string cost;             // "rows" or a file of costs; empty: none
  std::string cost_weights;     // which of the file's weight formats; empty: it has one
};

// Adds --split, --cost and --cost-weights.
void add_serving(Command& command, ServingOptions& options);

// The options, read.
struct ServedBy {
  Sharing sharing;
  std::optional<CostModel> cost;  // none: nobody asked for times
  std::string about = {};         // says what the costs are, for people

  Serving serving() const { return {sharing, cost ? &*cost : nullptr}; }
};
// The rule `time` without a file takes rows for costs. Throws Error.
ServedBy read_serving(const ServingOptions& options);

// "Every expert's tokens are shared equally among its replicas.", say, and of times whose they are.
// Full sentences, without a line break at the end.
std::string serving_text(const ServingOptions& options, const ServedBy& served);

}  // namespace trimtab::cli
