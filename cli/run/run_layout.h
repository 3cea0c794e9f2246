// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab run` that say which ranks share tokens and experts, and the layout that
// they make.
#pragma once

#include <optional>

#include "cli/options/command.h"
#include "trimtab/layout.h"

namespace trimtab::cli {

struct LayoutOptions {
  int tp = 0, dp = 0, pcp = 0;  // 0: not said
  bool ep = true, sp = true;

  bool given() const { return tp > 0 || dp > 0 || pcp > 0 || !ep || !sp; }
  // The ranks that they ask for; 0 where they leave it open.
  int ranks() const;
  // The ranks that have the same sequences.
  int ranks_of_a_group() const;
};

void add_layout(Command& run, LayoutOptions& options);

// The layout of so many ranks; none where no option was given. What was not said: tp and pcp 1, dp
// as many as there are ranks for. Throws InvalidArgument as check_layout().
std::optional<ParallelLayout> layout_of(const LayoutOptions& options, int ranks);

}  // namespace trimtab::cli
