// SPDX-License-Identifier: Apache-2.0
// The kinds of dispatchers and what each of them can do. There is one table; the library, the
// command, its help texts and its errors all ask it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trimtab {

// How rows for the experts are laid out.
enum class Format {
  // Rows are sorted by local expert: [sum of counts, hidden].
  kStandard,
  // [local experts * capacity, hidden]: the rows of local expert e are the first counts[e] from
  // e * capacity on. The rows behind them are undefined and must not be read.
  kBatched,
  // Rows are in the order of kStandard, but each stays where its source has it: whoever needs a row
  // follows a pointer.
  kIndirect,
};

// In which order the rows of a token are added up.
enum class SumOrder {
  kById,          // in the order of its ids: the output's bits do not depend on ranks or placement
  kByIdOnDemand,  // as kById if DispatchShape::exact_order is set, else as kByRank
  kByRank,        // by rank or host first, so the bits depend on the placement, never on timing
};

struct DispatcherKind {
  std::string_view name;
  std::string_view summary;  // one line for help texts
  Format format = Format::kStandard;
  SumOrder order = SumOrder::kById;
  // It can share picks out over the replicas of an expert (DispatchShape::num_experts).
  bool shares_out = false;
  // Rows arrive with their router weights, so that experts can apply them (Left::kSum).
  bool carries_weights = true;
  // Tokens arrive with all their picks of this rank, so that experts can sum these
  // (Left::kNothing), but where DispatchShape::exact_order is set.
  bool brings_tokens = false;
  // It sends each result back as a row of a message, so that these can have a type of their own
  // (DispatchShape::results).
  bool sends_results = false;
  // finish() gives whole outputs. If not, it gives a part, which the caller sums over the ranks.
  bool output_is_reduced = true;
  // It takes a DispatchShape::row_budget.
  bool takes_row_budget = true;
  // It works only where all ranks of the lane share memory (Communicator::board).
  bool needs_board = false;
  // It is made for ranks on several hosts, whose numbers make_dispatcher() must be given.
  bool needs_hosts = false;
};

// All kinds that make_dispatcher() knows, by name.
std::span<const DispatcherKind> dispatcher_kinds();
// Throws InvalidArgument with the list of names.
const DispatcherKind& dispatcher_kind(std::string_view name);
// The names of the kinds for which `holds` is true, or of all: "fused, pull and all_to_all".
std::string dispatcher_names(bool (*holds)(const DispatcherKind& kind) = nullptr);

}  // namespace trimtab
