// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trimtab/error.h"

namespace trimtab::cli {

int LayoutOptions::ranks() const {
  if (dp == 0) return 0;
  const int64_t product = int64_t{std::max(tp, 1)} * dp * std::max(pcp, 1);
  return static_cast<int>(std::min<int64_t>(product, std::numeric_limits<int>::max()));
}

int LayoutOptions::ranks_of_a_group() const {
  return std::max(tp, 1) * std::max(pcp, 1);
}

void add_layout(Command& run, LayoutOptions& options) {
  run.number("--tp", options.tp,
             "Tensor-parallel ranks: so many neighbours have the same prompts; they take slices of "
             "the tokens through whole experts, or, with --no-ep, parts of every expert [1]")
      .between(1, 1024);
  run.number("--dp", options.dp, "Groups with prompts of their own [ranks / (tp x pcp)]")
      .between(1, 1024);
  run.number("--pcp", options.pcp,
             "Groups that have the same prompts and take slices of their tokens through the "
             "experts [1]")
      .between(1, 1024);
  run.negative_flag("--no-ep", options.ep,
                    "Each rank of a tensor-parallel group holds a part of every expert, not whole "
                    "ones; the outputs are summed over the group");
  run.negative_flag("--no-sp", options.sp,
                    "With whole experts and one tensor-parallel group: each rank takes all tokens, "
                    "works on its own experts' picks, and the outputs are summed");
}

std::optional<ParallelLayout> layout_of(const LayoutOptions& options, int ranks) {
  if (!options.given()) return std::nullopt;
  ParallelLayout layout{.tp = std::max(options.tp, 1),
                        .ep = options.ep,
                        .pcp = std::max(options.pcp, 1),
                        .sp = options.sp};
  const int64_t of_sequences = int64_t{layout.tp} * layout.pcp;
  if (options.dp == 0 && ranks % of_sequences != 0) {
    throw InvalidArgument(fmt::format("layout: {} ranks are not a multiple of tp {} x pcp {}",
                                      ranks, layout.tp, layout.pcp));
  }
  layout.dp = options.dp > 0 ? options.dp : static_cast<int>(ranks / of_sequences);
  check_layout(layout, ranks);
  if (layout.tp == 1 && !layout.ep)
    throw UsageError("--no-ep: it has no effect without --tp above 1");
  if (!layout.sp && (layout.tp == 1 || !layout.ep))
    throw UsageError("--no-sp: it has no effect without --tp above 1, or with --no-ep");
  return layout;
}

}  // namespace trimtab::cli
