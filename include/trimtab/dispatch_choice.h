// SPDX-License-Identifier: Apache-2.0
// Which dispatcher for what. The choice depends only on what every rank knows alike, so that all
// choose the same; not on the size of a batch, as none is too small or too large for the one that
// is taken (docs/performance.md).
#pragma once

#include <span>
#include <string_view>

#include "trimtab/dispatcher.h"

namespace trimtab {

struct DispatchSituation {
  int ranks = 1;
  int hosts = 1;                      // that the ranks are on: Communicator::hosts()
  Format format = Format::kStandard;  // that the experts take
  bool exact_order = false;           // as DispatchShape::exact_order
  bool shares_out = false;            // requests come with replicas
  bool same_tokens = false;  // every rank has the same tokens, and the caller sums the outputs
};

// A row of the table: the first whose condition holds is taken.
struct DispatchRule {
  std::string_view dispatcher;
  std::string_view condition;  // in words
  bool (*holds)(const DispatchSituation& situation);
};
std::span<const DispatchRule> dispatch_rules();

// forced: a dispatcher's name, taken as it is, or "auto". Throws InvalidArgument for a situation
// that no row is for. The rule says why; say it once where the program logs.
DispatchRule choose_dispatcher(const DispatchSituation& situation,
                               std::string_view forced = "auto");

}  // namespace trimtab
