// SPDX-License-Identifier: Apache-2.0
#include "trimtab/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

std::vector<int32_t> run(SplitRule rule, const SplitTable& table, std::span<const int32_t> counts) {
  Workspace workspace(split_workspace_bytes(table));
  std::vector<int32_t> shares(cells(table.num_ranks, table.num_slots), -1);
  split_tokens(rule, table, counts, workspace, shares);
  return shares;
}

// Tokens of each slot over all sources: [slots].
std::vector<int64_t> slot_totals(const SplitTable& table, std::span<const int32_t> shares) {
  std::vector<int64_t> totals(table.num_slots, 0);
  for (size_t i = 0; i < shares.size(); ++i) totals[i % totals.size()] += shares[i];
  return totals;
}

std::string error_of(const SplitTable& table, std::span<const int32_t> counts) {
  try {
    run(SplitRule::kRoundRobin, table, counts);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "nothing thrown";
}

TEST(RoundRobin, ReplicasDifferByAtMostOneWhoeverSends) {
  std::mt19937 rng(1);
  for (int i = 0; i < 500; ++i) {
    const int ranks = 1 + static_cast<int>(rng() % 8);
    const int experts = 1 + static_cast<int>(rng() % 6);
    std::vector<int32_t> logical;
    for (int s = 0; s < ranks * experts; ++s) {
      logical.push_back(s < experts ? s
                                    : static_cast<int32_t>(rng() % static_cast<unsigned>(experts)));
    }
    const SplitTable table(Placement(1, experts, std::vector<int>(ranks, experts), logical), 0);
    std::vector<int32_t> counts(static_cast<size_t>(ranks * experts));
    for (int32_t& count : counts) count = static_cast<int32_t>(rng() % 4);
    const std::vector<int32_t> shares = run(SplitRule::kRoundRobin, table, counts);
    for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
      std::vector<int32_t> sum(experts, 0);
      for (size_t s = 0; s < logical.size(); ++s) sum[logical[s]] += shares[r * logical.size() + s];
      for (size_t e = 0; e < sum.size(); ++e)
        ASSERT_EQ(sum[e], counts[r * sum.size() + e]) << "case " << i;
    }
    const std::vector<int64_t> totals = slot_totals(table, shares);
    for (int32_t e = 0; e < experts; ++e) {
      int64_t low = std::numeric_limits<int64_t>::max();
      int64_t high = 0;
      for (size_t s = 0; s < logical.size(); ++s) {
        if (logical[s] != e) continue;
        low = std::min(low, totals[s]);
        high = std::max(high, totals[s]);
      }
      ASSERT_LE(high - low, 1) << "case " << i << " expert " << e;
    }
  }
}

// The first token of expert e goes to its replica e % replicas, so that the odd tokens of many
// experts do not all fall on low ranks.
TEST(RoundRobin, OddTokensFallOnAllRanks) {
  const SplitTable table(Placement(1, 4, {4, 4}, {0, 1, 2, 3, 0, 1, 2, 3}), 0);
  const std::vector<int32_t> counts = {1, 1, 1, 1, 0, 0, 0, 0};
  EXPECT_EQ(run(SplitRule::kRoundRobin, table, counts),
            (std::vector<int32_t>{1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

// One token a rank, two copies: a rule that looks at its own rank only (replica = rank % copies, or
// a draw per rank) sends five or more of eight to one copy. Share x copies is 1 for 8 tokens and
// 8/7 for 7.
TEST(RoundRobin, HottestExpertOfSmallBatches) {
  const SplitTable table(Placement(1, 8, {2, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 0, 2, 3, 4, 5, 6, 7}, 0),
                         0);
  for (unsigned senders = 1; senders < 256; ++senders) {
    std::vector<int32_t> counts(64, 0);
    int64_t tokens = 0;
    for (size_t r = 0; r < 8; ++r) tokens += counts[r * 8] = static_cast<int32_t>(senders >> r & 1);
    const std::vector<int64_t> totals =
        slot_totals(table, run(SplitRule::kRoundRobin, table, counts));
    ASSERT_EQ(std::max(totals[0], totals[2]), (tokens + 1) / 2) << "senders " << senders;
  }
}

TEST(StaticSplit, FollowsLog2phy) {
  const Placement placement(2, 3, {2, 2, 2}, {0, 1, 2, 0, 1, 2, 2, 1, 0, 2, 1, 0});
  for (int layer = 0; layer < 2; ++layer) {
    const SplitTable table(placement, layer);
    const std::vector<int32_t> counts = {5, 0, 2, 1, 1, 1, 0, 7, 3};
    const std::vector<int32_t> shares = run(SplitRule::kStatic, table, counts);
    for (size_t r = 0; r < 3; ++r) {
      std::vector<int32_t> expected(6, 0);
      const std::vector<int32_t> log2phy = placement.log2phy(layer, static_cast<int>(r));
      for (size_t e = 0; e < 3; ++e) expected[log2phy[e]] = counts[r * 3 + e];
      EXPECT_EQ(std::vector<int32_t>(shares.begin() + static_cast<int64_t>(r * 6),
                                     shares.begin() + static_cast<int64_t>(r * 6 + 6)),
                expected);
    }
  }
}

TEST(AssignSlots, UsesUpTheShares) {
  const SplitTable table(Placement(1, 2, {2, 1}, {0, 1, 0}), 0);
  std::vector<int32_t> row = {2, 1, 1};
  std::vector<int32_t> ids = {0, -1, 0, 1, 0, -1};
  assign_slots(table, row, ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, -1, 0, 1, 2, -1}));
  EXPECT_EQ(row, (std::vector<int32_t>{0, 0, 0}));
  ids = {1};
  EXPECT_THROW(assign_slots(table, row, ids), InvalidArgument);
  ids = {2};
  EXPECT_THROW(assign_slots(table, row, ids), InvalidArgument);
}

TEST(SplitTokens, RankLoads) {
  const SplitTable table(Placement(1, 2, {2, 1}, {0, 1, 0}), 0);
  std::vector<int64_t> loads(2);
  split_rank_loads(table, std::vector<int32_t>{1, 2, 3, 4, 5, 6}, loads);
  EXPECT_EQ(loads, (std::vector<int64_t>{12, 9}));
}

TEST(SplitTable, FingerprintsTellReplicasRanksAndNodesApart) {
  const auto of = [](std::vector<int> slots, std::vector<int32_t> logical,
                     std::vector<int32_t> nodes = {}) {
    return SplitTable(Placement(1, 2, std::move(slots), std::move(logical)), 0, nodes).fingerprint;
  };
  const uint64_t one = of({2, 1}, {0, 1, 0});
  EXPECT_EQ(of({2, 1}, {0, 1, 0}, {7, 7}), one);
  EXPECT_NE(of({2, 1}, {1, 0, 0}), one);
  EXPECT_NE(of({1, 2}, {0, 1, 0}), one);
  EXPECT_NE(of({2, 1}, {0, 1, 0}, {0, 1}), one);
}

TEST(SplitTokens, RefusesBadInput) {
  const SplitTable table(Placement(1, 2, {2, 1}, {0, 1, 0}), 0);
  EXPECT_EQ(error_of(table, std::vector<int32_t>{1, 2, 3, -4}),
            "rank 1 has -4 tokens for expert 1, expected 0 or more");
  EXPECT_EQ(error_of(table, std::vector<int32_t>{1, 2, 3}),
            "split of 2 ranks x 2 experts over 3 slots got 3 counts and 6 shares");
  EXPECT_THROW(SplitTable(Placement(1, 1, {1}, {0}), 1), InvalidArgument);
  EXPECT_THROW(SplitTable(Placement(1, 1, {1}, {0}), 0, std::vector<int32_t>{0, 0}),
               InvalidArgument);
  EXPECT_THROW(SplitTable(Placement(1, 1, {1}, {0}), 0, std::vector<int32_t>{-1}), InvalidArgument);
  EXPECT_EQ(parse_split_rule("split"), SplitRule::kSplit);
  EXPECT_THROW(parse_split_rule("lp"), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
