// SPDX-License-Identifier: Apache-2.0
// The choice of a dispatcher for a layer. It depends only on what every rank knows alike, so that
// all choose the same. It does not depend on the size of a batch, as no batch is too small or too
// large for the dispatcher that is taken (docs/performance.md).
#pragma once

#include <span>
#include <string_view>

#include "trimtab/dispatcher.h"

namespace trimtab {

struct DispatchSituation {
  int ranks = 1;
  int hosts = 1;                      // the number of hosts: Communicator::hosts()
  Format format = Format::kStandard;  // the format that the experts take
  bool exact_order = false;           // as DispatchShape::exact_order
  bool shares_out = false;            // requests come with replicas
  DType results = DType::kF32;        // as DispatchShape::results
  bool same_tokens = false;  // every rank has the same tokens, and the caller sums the outputs
};

// A row of the table. The first row whose condition holds is taken.
struct DispatchRule {
  std::string_view dispatcher;
  std::string_view condition;  // in words
  bool (*holds)(const DispatchSituation& situation);
};
std::span<const DispatchRule> dispatch_rules();

// Returns the rule that chooses the dispatcher, or, where `forced` is not "auto", one with that
// name, which is taken as it is. Throws InvalidArgument for a situation that no row fits. The rule
// says why; a program says it once where it logs.
DispatchRule choose_dispatcher(const DispatchSituation& situation,
                               std::string_view forced = "auto");

}  // namespace trimtab
