// SPDX-License-Identifier: Apache-2.0
#include "trimtab/layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {

ParallelLayout data_parallel(int ranks) {
  return {.dp = ranks};
}

std::string name(const ParallelLayout& layout) {
  std::string text = cat("tp ", layout.tp, " x dp ", layout.dp);
  if (layout.pcp > 1) text += cat(" x pcp ", layout.pcp);
  text += layout.ep ? ", whole experts" : ", experts in parts";
  if (layout.ep && layout.ranks_of_sequences() > 1)
    text += layout.sp ? ", slices of tokens" : ", all tokens";
  return text;
}

void check_layout(const ParallelLayout& layout, int ranks) {
  if (layout.tp < 1 || layout.dp < 1 || layout.pcp < 1) {
    throw InvalidArgument(cat("layout: tp ", layout.tp, ", dp ", layout.dp, ", pcp ", layout.pcp,
                              "; each must be at least 1"));
  }
  int groups = 0, product = 0;
  if (__builtin_mul_overflow(layout.tp, layout.dp, &groups) ||
      __builtin_mul_overflow(groups, layout.pcp, &product) || product != ranks) {
    throw InvalidArgument(cat("layout: tp ", layout.tp, " x dp ", layout.dp, " x pcp ", layout.pcp,
                              " are not ", ranks, " ranks"));
  }
  if (layout.ep && !layout.sp && layout.tp > 1 && (layout.dp > 1 || layout.pcp > 1)) {
    throw InvalidArgument(
        cat("layout: whole experts and no slices of tokens (sp off) work for one "
            "tensor-parallel group, not for dp ",
            layout.dp, " x pcp ", layout.pcp, " of them; take sp, or experts in parts (ep off)"));
  }
}

Placement placement_of_layout(const ParallelLayout& layout, int num_layers, int num_experts) {
  if (layout.ep) return Placement::linear(num_layers, num_experts, layout.ranks());
  std::vector<int32_t> logical(static_cast<size_t>(num_layers) * layout.ranks() * num_experts);
  for (size_t slot = 0; slot < logical.size(); ++slot)
    logical[slot] = static_cast<int32_t>(slot % static_cast<size_t>(num_experts));
  return {num_layers, num_experts, std::vector<int>(layout.ranks(), num_experts),
          std::move(logical)};
}

void check_placement(const ParallelLayout& layout, const Placement& placement) {
  if (!layout.sums_parts()) return;
  if (layout.ep) {
    if (placement.num_slots() == placement.num_experts()) return;
    throw InvalidArgument(cat("layout ", name(layout),
                              ": every rank has all tokens, which replicas can't share out; there "
                              "are ",
                              placement.num_slots(), " slots for ", placement.num_experts(),
                              " experts"));
  }
  const Placement wanted =
      placement_of_layout(layout, placement.num_layers(), placement.num_experts());
  bool fits = std::ranges::equal(placement.first_slots(), wanted.first_slots());
  for (int layer = 0; fits && layer < placement.num_layers(); ++layer)
    fits = std::ranges::equal(placement.logical(layer), wanted.logical(layer));
  if (!fits) {
    throw InvalidArgument(cat("layout ", name(layout), ": every rank holds its part of all ",
                              placement.num_experts(), " experts, the placement says otherwise"));
  }
}

LayoutGroups make_layout_groups(const ParallelLayout& layout, Communicator& comm) {
  check_layout(layout, comm.size());
  const int rank = comm.rank();
  LayoutGroups groups;
  if (!layout.ep && layout.tp < comm.size()) groups.experts = comm.split(rank / layout.tp, rank);
  if (layout.token_slices() > 1) {
    // With parts of experts the ranks of a tensor-parallel group need the same tokens.
    const int of_sequences = layout.dp_rank(rank);
    groups.tokens = comm.split(
        layout.ep ? of_sequences : of_sequences * layout.tp + layout.tp_rank(rank), rank);
  }
  return groups;
}

TokenSlice token_slice(int64_t count, int parts, int part) {
  const int64_t each = count / parts, longer = count % parts;
  return {part * each + std::min<int64_t>(part, longer), each + (part < longer ? 1 : 0)};
}

}  // namespace trimtab
