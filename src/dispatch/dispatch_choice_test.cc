// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatch_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

std::string choice(const DispatchSituation& situation) {
  return std::string(choose_dispatcher(situation).dispatcher);
}

// C2: choice by batch size, number of ranks and experts on a device: bounded exchange or
//     all-gather.
// C4: all-gather where ranks are at most top-k; an exchange per pair of ranks otherwise.
// C7: shared memory: pull; several hosts: packed with duplicates removed; few tokens and ranks:
//     all-gather; decided once a step.
TEST(DispatchChoice, ByHostsAndFormat) {
  const DispatchSituation one{.ranks = 4, .hosts = 1};
  EXPECT_EQ(choice(one), "pull");
  DispatchSituation s = one;
  s.ranks = 1;
  EXPECT_EQ(choice(s), "pull");
  s = one;
  s.format = Format::kBatched;
  EXPECT_EQ(choice(s), "pull_batched");
  s.hosts = 2;
  EXPECT_THROW(choose_dispatcher(s), InvalidArgument);
  s.format = Format::kIndirect;
  EXPECT_THROW(choose_dispatcher(s), InvalidArgument);
  s.hosts = 1;
  EXPECT_EQ(choice(s), "fused");
  s = one;
  s.hosts = 2;
  EXPECT_EQ(choice(s), "hybrid");
  s.exact_order = true;
  EXPECT_EQ(choice(s), "packed");
  s.shares_out = true;
  EXPECT_EQ(choice(s), "packed");
  s.exact_order = false;
  EXPECT_EQ(choice(s), "hybrid");
  s.hosts = 1;
  EXPECT_EQ(choice(s), "pull");
  s.results = DType::kBF16;
  EXPECT_EQ(choice(s), "packed");
  s.hosts = 2;
  EXPECT_EQ(choice(s), "hybrid");
  s.results = DType::kF32;
  s.same_tokens = true;
  EXPECT_THROW(choose_dispatcher(s), InvalidArgument);
  s = one;
  s.hosts = 4;
  EXPECT_EQ(choice(s), "packed");
  s.ranks = s.hosts = 2;
  EXPECT_EQ(choice(s), "packed");
  s.same_tokens = true;
  EXPECT_EQ(choice(s), "grouped");
}

TEST(DispatchChoice, CanBeForcedAndSaysWhy) {
  const DispatchRule forced = choose_dispatcher({.ranks = 4}, "mc2");
  EXPECT_EQ(forced.dispatcher, "mc2");
  EXPECT_EQ(forced.condition, "asked for");
  EXPECT_NE(choose_dispatcher({.ranks = 4}).condition.find("one host"), std::string_view::npos);
}

// Whatever is asked for: the kind that is taken can do it, or nothing is taken.
TEST(DispatchChoice, TakesOnlyWhatCanDoIt) {
  int taken = 0;
  for (int flags = 0; flags < 16; ++flags) {
    for (const Format format : {Format::kStandard, Format::kBatched, Format::kIndirect}) {
      for (const int hosts : {1, 2, 4}) {
        const DispatchSituation s{.ranks = 4,
                                  .hosts = hosts,
                                  .format = format,
                                  .exact_order = (flags & 1) != 0,
                                  .shares_out = (flags & 2) != 0,
                                  .results = (flags & 8) != 0 ? DType::kI8 : DType::kF32,
                                  .same_tokens = (flags & 4) != 0};
        try {
          const DispatcherKind& kind = dispatcher_kind(choose_dispatcher(s).dispatcher);
          ++taken;
          EXPECT_EQ(kind.format, format) << kind.name;
          EXPECT_TRUE(!s.exact_order || kind.order != SumOrder::kByRank) << kind.name;
          EXPECT_TRUE(!s.shares_out || kind.shares_out) << kind.name;
          EXPECT_TRUE(s.results == DType::kF32 || kind.sends_results) << kind.name;
          EXPECT_TRUE(hosts == 1 || !kind.needs_board) << kind.name;
          EXPECT_EQ(kind.output_is_reduced, !s.same_tokens) << kind.name;
        } catch (const InvalidArgument&) {
          EXPECT_TRUE(s.same_tokens ||
                      ((hosts > 1 || s.results != DType::kF32) && format != Format::kStandard));
        }
      }
    }
  }
  EXPECT_GT(taken, 20);
}

// C6: the choice depends only on what all ranks know, so that they can't choose differently and
//     hang.
// Each rule is taken somewhere: none is hidden behind those above it. And the table knows real
// dispatchers only.
TEST(DispatchChoice, EveryRuleIsReached) {
  std::vector<bool> reached(dispatch_rules().size());
  for (const int ranks : {1, 2, 4}) {
    for (const int hosts : {1, 2, 4}) {
      for (const int flags : {0, 1, 2, 4, 8, 16}) {
        const DispatchSituation s{.ranks = ranks,
                                  .hosts = std::min(hosts, ranks),
                                  .format = flags == 4    ? Format::kBatched
                                            : flags == 16 ? Format::kIndirect
                                                          : Format::kStandard,
                                  .exact_order = flags == 1,
                                  .results = flags == 8 ? DType::kI8 : DType::kF32,
                                  .same_tokens = flags == 2};
        const auto rules = dispatch_rules();
        const auto rule =
            std::ranges::find_if(rules, [&](const DispatchRule& r) { return r.holds(s); });
        if (rule != rules.end()) reached[rule - rules.begin()] = true;
      }
    }
  }
  for (size_t i = 0; i < reached.size(); ++i)
    EXPECT_TRUE(reached[i]) << dispatch_rules()[i].condition;
  const std::vector<int32_t> first{0, 1}, hosts{0};
  for (const DispatchRule& rule : dispatch_rules()) {
    const int64_t capacity = rule.dispatcher == "pull_batched" ? 1 : 0;
    EXPECT_NO_THROW(
        make_dispatcher(rule.dispatcher, {1, 1, 1, DType::kF32, first, capacity}, 0, hosts));
  }
}

}  // namespace
}  // namespace trimtab
