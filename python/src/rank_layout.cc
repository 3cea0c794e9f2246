// SPDX-License-Identifier: Apache-2.0
#include "rank_layout.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/dispatch_choice.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

// Ranks that sum parts have one way to do it.
void check_summed(const ParallelLayout& layout, const DispatchWish& wish) {
  if (wish.dispatcher != "auto") {
    throw InvalidArgument(cat("layout ", name(layout),
                              ": its ranks sum parts; that takes dispatcher auto, not ",
                              wish.dispatcher));
  }
  if (wish.row_budget.value_or(0) != 0) {
    throw InvalidArgument(cat("layout ", name(layout),
                              ": each of its ranks gets no more rows than its own tokens bring; a "
                              "row budget is for layouts that send rows, not ",
                              *wish.row_budget));
  }
}

}  // namespace

Placement placement_of_lane(const ParallelLayout& layout, const Placement& placement) {
  if (layout.ep) return placement;
  return placement_of_layout({.tp = layout.tp, .ep = false}, placement.num_layers(),
                             placement.num_experts());
}

std::unique_ptr<Dispatcher> make_rank_dispatcher(const ParallelLayout& layout, DispatchShape shape,
                                                 int rank, std::span<const int32_t> hosts,
                                                 const DispatchWish& wish) {
  if (layout.sums_parts()) {
    check_summed(layout, wish);
    return make_summed_dispatcher(shape, layout.ep ? rank : layout.tp_rank(rank));
  }
  const DispatchRule rule = choose_dispatcher({.ranks = layout.ranks(),
                                               .hosts = 1 + *std::ranges::max_element(hosts),
                                               .shares_out = wish.shares_out},
                                              wish.dispatcher);
  const DispatcherKind& kind = dispatcher_kind(rule.dispatcher);
  if (!kind.output_is_reduced) {
    throw InvalidArgument(
        cat("dispatcher ", kind.name, " gives no whole outputs, which are wanted here"));
  }
  if (!kind.takes_row_budget && wish.row_budget.value_or(0) != 0) {
    throw InvalidArgument(
        cat("dispatcher ", kind.name, " takes no row budget, not ", *wish.row_budget, "; ",
            dispatcher_names([](const DispatcherKind& other) { return other.takes_row_budget; }),
            " do"));
  }
  shape.row_budget =
      row_budget_of(shape, kind.takes_row_budget ? wish.row_budget.value_or(kRowBudget) : 0);
  return make_dispatcher(kind.name, shape, rank, hosts);
}

}  // namespace trimtab::python
