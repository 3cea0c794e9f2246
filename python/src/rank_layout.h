// SPDX-License-Identifier: Apache-2.0
// What a parallel layout means for the dispatcher and the placement of a runtime's ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "trimtab/dispatcher.h"
#include "trimtab/layout.h"
#include "trimtab/placement.h"

namespace trimtab::python {

struct DispatchWish {
  std::string dispatcher = "auto";  // as choose_dispatcher()
  // As DecoderOptions::row_budget; none: kRowBudget where the dispatcher takes a budget, else 0.
  std::optional<double> row_budget = {};
  bool shares_out = false;  // calls come with replicas
};

// The ranks and slots that a lane's dispatcher sees, which are those of one tensor-parallel group
// where experts are in parts. placement: of all ranks.
Placement placement_of_lane(const ParallelLayout& layout, const Placement& placement);

// The dispatcher of a rank for the tokens that it takes through the layer, at most
// shape.max_tokens. shape: of the lane's ranks; its row budget is set here. hosts: of the lane's
// ranks, as Communicator::hosts() has them. Throws InvalidArgument
// for a dispatcher that the layout can't take, and for a row budget where there is none.
std::unique_ptr<Dispatcher> make_rank_dispatcher(const ParallelLayout& layout, DispatchShape shape,
                                                 int rank, std::span<const int32_t> hosts,
                                                 const DispatchWish& wish);

}  // namespace trimtab::python
