// SPDX-License-Identifier: Apache-2.0
#include "trimtab/layout.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(Layouts, ThatCannotBeAreRefusedWithTheirValues) {
  const auto refused = [](const ParallelLayout& layout, int ranks) {
    try {
      check_layout(layout, ranks);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused({}, 1), "");
  EXPECT_EQ(refused({.tp = 2, .dp = 3, .pcp = 2}, 12), "");
  EXPECT_EQ(refused({.tp = 2, .sp = false}, 2), "");
  EXPECT_EQ(refused({.tp = 2, .dp = 2, .ep = false, .sp = false}, 4), "");
  EXPECT_EQ(refused({.tp = 0}, 1), "layout: tp 0, dp 1, pcp 1; each must be at least 1");
  EXPECT_EQ(refused({.tp = 2, .dp = 3}, 4), "layout: tp 2 x dp 3 x pcp 1 are not 4 ranks");
  EXPECT_NE(refused({.tp = INT_MAX, .dp = 2}, 4), "");
  EXPECT_NE(refused({.tp = 1 << 16, .dp = 1 << 16}, 0), "");
  EXPECT_NE(refused({.tp = 2, .dp = 2, .sp = false}, 4).find("dp 2 x pcp 1"), std::string::npos);
}

// C1, P1: slices are as even as they go, and some may be empty.
TEST(Layouts, SlicesMakeUpAllTokens) {
  for (const int64_t count : {0, 1, 2, 5, 12}) {
    for (const int parts : {1, 2, 4, 7}) {
      int64_t end = 0;
      for (int part = 0; part < parts; ++part) {
        const TokenSlice slice = token_slice(count, parts, part);
        EXPECT_EQ(slice.first, end);
        EXPECT_LE(slice.count, (count + parts - 1) / parts);
        EXPECT_GE(slice.count, count / parts);
        end += slice.count;
      }
      EXPECT_EQ(end, count);
    }
  }
}

// Who is in a rank's group, in order.
std::vector<int> members(Communicator* group, int rank) {
  if (group == nullptr) return {rank};
  std::vector<int> all(static_cast<size_t>(group->size()));
  std::vector<int64_t> bytes(all.size());
  Pending gather = group->all_gather_v(std::as_bytes(std::span(&rank, 1)),
                                       std::as_writable_bytes(std::span(all)), bytes);
  gather.wait();
  gather.wait_released();
  return all;
}

TEST(Layouts, MakeTheGroupsThatTheySay) {
  const ParallelLayout whole{.tp = 2, .dp = 2, .pcp = 2};
  const ParallelLayout parts{.tp = 2, .dp = 2, .ep = false, .pcp = 2};
  run_ranks(8, [&](Communicator& comm) {
    const int rank = comm.rank(), first = rank / 4 * 4;
    LayoutGroups groups = make_layout_groups(whole, comm);
    EXPECT_EQ(groups.experts, nullptr);
    EXPECT_EQ(members(groups.tokens.get(), rank),
              (std::vector<int>{first, first + 1, first + 2, first + 3}));
    groups = make_layout_groups(parts, comm);
    EXPECT_EQ(members(groups.experts.get(), rank),
              (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(members(groups.tokens.get(), rank),
              (std::vector<int>{first + rank % 2, first + 2 + rank % 2}));
    EXPECT_EQ(parts.slice_of(rank), groups.tokens->rank());
    EXPECT_EQ(whole.slice_of(rank), rank % 4);
    EXPECT_EQ((ParallelLayout{.tp = 8, .sp = false}).slice_of(rank), 0);
  });
  EXPECT_EQ(whole.dp_rank(3), 0);
  EXPECT_EQ(whole.dp_rank(4), 1);
  EXPECT_TRUE(whole.leads(4));
  EXPECT_FALSE(whole.leads(6));
}

// Ranks compare layouts by their names.
TEST(Layouts, HaveNamesThatTellThemApart) {
  std::set<std::string> names;
  int layouts = 0;
  for (const int tp : {1, 2}) {
    for (const int pcp : {1, 2}) {
      for (const bool ep : {false, true}) {
        for (const bool sp : {false, true}) {
          const ParallelLayout layout{.tp = tp, .dp = 3, .ep = ep, .pcp = pcp, .sp = sp};
          const bool counts = sp || (ep && layout.ranks_of_sequences() > 1);
          layouts += counts ? 1 : 0;
          names.insert(name(layout));
        }
      }
    }
  }
  EXPECT_EQ(std::ssize(names), layouts);
}

TEST(Layouts, PlaceAllExpertsOnEveryRankWhereTheyAreInParts) {
  const Placement whole = placement_of_layout({.tp = 2, .dp = 2}, 2, 8);
  EXPECT_EQ(whole.num_slots(), 8);
  const Placement parts = placement_of_layout({.tp = 2, .dp = 2, .ep = false}, 2, 8);
  EXPECT_EQ(parts.num_slots(), 32);
  for (int slot = 0; slot < 32; ++slot) EXPECT_EQ(parts.logical(1)[slot], slot % 8);
}

TEST(Layouts, RanksThatSumPartsHaveNoReplicas) {
  const Placement whole = Placement::linear(1, 4, 2);
  const Placement replicas(1, 4, {3, 3}, {0, 1, 2, 3, 0, 1}),
      parts(1, 4, {4, 4}, {0, 1, 2, 3, 0, 1, 2, 3});
  check_placement({.tp = 2}, replicas);
  check_placement({.tp = 2, .sp = false}, whole);
  EXPECT_THROW(check_placement({.tp = 2, .sp = false}, replicas), InvalidArgument);
  EXPECT_THROW(check_placement({.tp = 2, .sp = false}, parts), InvalidArgument);
  check_placement({.tp = 2, .ep = false}, parts);
  EXPECT_THROW(check_placement({.tp = 2, .ep = false}, whole), InvalidArgument);
  EXPECT_THROW(check_placement({.tp = 2, .ep = false}, replicas), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
