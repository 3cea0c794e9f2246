// SPDX-License-Identifier: Apache-2.0
// The table of dispatchers. An exchange reads its own row of it, so that what the table says is
// what the dispatcher does.
#pragma once

#include <string_view>

#include "trimtab/dispatcher_kind.h"

namespace trimtab {

inline constexpr DispatcherKind kDispatcherKinds[] = {
    {.name = "all_gather",
     .summary = "every rank gets every token and adds its own experts' part",
     .order = SumOrder::kByRank,
     .brings_tokens = true},
    {.name = "all_to_all",
     .summary = "a row for each pick, in blocks between all pairs of ranks",
     .shares_out = true,
     .sends_results = true},
    {.name = "fused",
     .summary = "one host: experts read rows from the memory of the ranks that have them",
     .format = Format::kIndirect,
     .shares_out = true,
     .needs_board = true},
    {.name = "grouped",
     .summary = "every rank has the same tokens; the caller sums the outputs",
     .order = SumOrder::kByRank,
     .brings_tokens = true,
     .output_is_reduced = false,
     .takes_row_budget = false},
    {.name = "hybrid",
     .summary = "a token goes once to each host and is pulled there",
     .order = SumOrder::kByRank,
     .shares_out = true,
     .sends_results = true,
     .needs_hosts = true},
    {.name = "mc2",
     .summary = "as all_to_all, with the counts at the head of the blocks",
     .sends_results = true},
    {.name = "packed",
     .summary = "a token goes once to each rank that holds any of its experts",
     .order = SumOrder::kByIdOnDemand,
     .shares_out = true,
     .brings_tokens = true,
     .sends_results = true},
    {.name = "pull",
     .summary = "one host: ranks copy rows from each other's memory",
     .shares_out = true,
     .needs_board = true},
    {.name = "pull_batched",
     .summary = "as pull, in blocks of a capacity for each expert",
     .format = Format::kBatched,
     .shares_out = true,
     .takes_row_budget = false,
     .needs_board = true},
};

// A row of the table. That the name is in it is checked while compiling.
consteval const DispatcherKind& kind_of(std::string_view name) {
  const DispatcherKind* row = kDispatcherKinds;
  while (row->name != name) ++row;
  return *row;
}

}  // namespace trimtab
