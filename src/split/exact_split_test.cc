// SPDX-License-Identifier: Apache-2.0
// The rule `split` against enumeration of all splits, and against the bound that subsets of ranks
// give.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <tuple>

#include "base/allocation_count.h"
#include "split/testing.h"
#include "trimtab/error.h"
#include "trimtab/split.h"

namespace trimtab {
namespace {

// Peak first (lower is better), then tokens that stay on their rank, then on their node (more is
// better).
using Quality = std::tuple<int64_t, int64_t, int64_t>;

struct Case {
  Placement placement;
  std::vector<int32_t> nodes;   // [ranks]
  std::vector<int32_t> counts;  // [ranks, experts]

  size_t ranks() const { return nodes.size(); }
  size_t experts() const { return static_cast<size_t>(placement.num_experts()); }
  int32_t count(size_t source, size_t expert) const { return counts[source * experts() + expert]; }
  size_t rank_of(size_t slot) const {
    return static_cast<size_t>(placement.rank_of_slot(static_cast<int>(slot)));
  }
};

Case random_case(std::mt19937& rng, int max_ranks, int max_slots, int max_experts, int max_count) {
  const Placement placement = test::random_placement(rng, max_ranks, max_slots, max_experts);
  std::vector<int32_t> nodes;
  const int num_nodes = test::draw(rng, 1, 3);
  for (int r = 0; r < placement.num_ranks(); ++r)
    nodes.push_back(test::draw(rng, 0, num_nodes - 1));
  return {placement, nodes, test::random_counts(rng, placement, max_count)};
}

std::vector<int32_t> run_split(const Case& c) {
  const SplitTable table(c.placement, 0, c.nodes);
  Workspace workspace(split_workspace_bytes(table));
  std::vector<int32_t> shares(c.ranks() * static_cast<size_t>(table.num_slots), -7);
  split_tokens(SplitRule::kSplit, table, c.counts, workspace, shares);
  EXPECT_EQ(workspace.mark(), 0u);
  return shares;
}

void expect_conserved(const Case& c, std::span<const int32_t> shares) {
  const std::span<const int32_t> logical = c.placement.logical(0);
  for (size_t r = 0; r < c.ranks(); ++r) {
    std::vector<int32_t> sum(c.experts(), 0);
    for (size_t s = 0; s < logical.size(); ++s) {
      ASSERT_GE(shares[r * logical.size() + s], 0);
      sum[logical[s]] += shares[r * logical.size() + s];
    }
    for (size_t e = 0; e < c.experts(); ++e)
      ASSERT_EQ(sum[e], c.count(r, e)) << "rank " << r << " expert " << e;
  }
}

Quality quality_of(const Case& c, std::span<const int32_t> shares) {
  const size_t slots = c.placement.logical(0).size();
  std::vector<int64_t> loads(c.ranks(), 0);
  int64_t own = 0;
  int64_t node = 0;
  for (size_t r = 0; r < c.ranks(); ++r) {
    for (size_t s = 0; s < slots; ++s) {
      const int32_t tokens = shares[r * slots + s];
      loads[c.rank_of(s)] += tokens;
      if (c.rank_of(s) == r) own += tokens;
      if (c.nodes[c.rank_of(s)] == c.nodes[r]) node += tokens;
    }
  }
  return {*std::max_element(loads.begin(), loads.end()), -own, -node};
}

// Tries every way to share every (source, expert) over the expert's slots.
class Enumeration {
 public:
  explicit Enumeration(const Case& c)
      : case_(c), shares_(c.ranks() * c.placement.logical(0).size(), 0) {}

  Quality best() {
    next(0);
    return best_;
  }

 private:
  void next(size_t pair) {
    if (pair == case_.counts.size()) {
      best_ = std::min(best_, quality_of(case_, shares_));
      return;
    }
    share(pair, 0, case_.counts[pair]);
  }

  void share(size_t pair, size_t slot, int32_t left) {
    const std::span<const int32_t> logical = case_.placement.logical(0);
    const auto expert = static_cast<int32_t>(pair % case_.experts());
    while (slot < logical.size() && logical[slot] != expert) ++slot;
    if (slot == logical.size()) {
      if (left == 0) next(pair + 1);
      return;
    }
    int32_t& here = shares_[pair / case_.experts() * logical.size() + slot];
    for (here = 0; here <= left; ++here) share(pair, slot + 1, left - here);
    here = 0;
  }

  const Case& case_;
  std::vector<int32_t> shares_;
  Quality best_{std::numeric_limits<int64_t>::max(), 0, 0};
};

// The number of leaves of the enumeration, to keep it small.
double num_splits(const Case& c) {
  double product = 1;
  const std::span<const int32_t> logical = c.placement.logical(0);
  for (size_t pair = 0; pair < c.counts.size(); ++pair) {
    const auto copies =
        std::count(logical.begin(), logical.end(), static_cast<int32_t>(pair % c.experts()));
    for (int64_t i = 1; i < copies; ++i)
      product *= static_cast<double>(c.counts[pair] + i) / static_cast<double>(i);
  }
  return product;
}

// The least peak, from the other side: experts that live only on some ranks S load these with at
// least their sum / |S|, and for the worst S this is reached.
int64_t peak_of_worst_subset(const Case& c) {
  std::vector<uint32_t> homes(c.experts(), 0);
  std::vector<int64_t> totals(c.experts(), 0);
  const std::span<const int32_t> logical = c.placement.logical(0);
  for (size_t s = 0; s < logical.size(); ++s) homes[logical[s]] |= 1u << c.rank_of(s);
  for (size_t i = 0; i < c.counts.size(); ++i) totals[i % c.experts()] += c.counts[i];
  int64_t peak = 0;
  for (uint32_t subset = 1; subset < 1u << c.ranks(); ++subset) {
    int64_t inside = 0;
    for (size_t e = 0; e < c.experts(); ++e) inside += (homes[e] & ~subset) == 0 ? totals[e] : 0;
    const int64_t ranks = std::popcount(subset);
    peak = std::max(peak, (inside + ranks - 1) / ranks);
  }
  return peak;
}

TEST(ExactSplit, EqualsEnumeration) {
  std::mt19937 rng(1);
  int tried = 0;
  for (int i = 0; tried < 400; ++i) {
    const Case c = random_case(rng, 4, 3, 5, 4);
    if (num_splits(c) > 20000) continue;
    ++tried;
    const std::vector<int32_t> shares = run_split(c);
    expect_conserved(c, shares);
    ASSERT_EQ(quality_of(c, shares), Enumeration(c).best()) << "case " << i;
  }
}

TEST(ExactSplit, PeakIsTheBoundOfTheWorstSubsetOfRanks) {
  std::mt19937 rng(2);
  for (int i = 0; i < 1500; ++i) {
    const Case c = random_case(rng, 8, 4, 16, i % 2 == 0 ? 3 : 1000);
    const std::vector<int32_t> shares = run_split(c);
    expect_conserved(c, shares);
    ASSERT_EQ(std::get<0>(quality_of(c, shares)), peak_of_worst_subset(c)) << "case " << i;
  }
}

TEST(ExactSplit, CountsNearTheTypesEnd) {
  Case c{Placement(1, 2, {2, 2}, {0, 1, 1, 0}), {0, 0}, {}};
  c.counts = {2147483647, 2147483646, 2147483647, 0};
  const std::vector<int32_t> shares = run_split(c);
  expect_conserved(c, shares);
  EXPECT_EQ(std::get<0>(quality_of(c, shares)), (int64_t{3} * 2147483647 - 1 + 1) / 2);
}

// Skew as routers trained without balance show it: the n-th expert gets 1/n of the first one's
// tokens.
TEST(ExactSplit, LevelsSkewedBatchesBetterThanEqualShares) {
  std::mt19937 rng(3);
  std::vector<double> weights;
  for (int e = 1; e <= 64; ++e) weights.push_back(1.0 / e);
  std::discrete_distribution<size_t> expert(weights.begin(), weights.end());
  std::vector<int32_t>
      logical;  // rank r holds r, r + 8, ... and a second copy of one of the 8 hottest
  for (int32_t r = 0; r < 8; ++r) {
    for (int32_t i = 0; i < 8; ++i) logical.push_back(i * 8 + r);
    logical.push_back((r + 3) % 8);
  }
  for (int i = 0; i < 20; ++i) {
    Case c{Placement(1, 64, std::vector<int>(8, 9), logical), std::vector<int32_t>(8, 0),
           std::vector<int32_t>(512, 0)};
    for (size_t token = 0; token < 6144; ++token) ++c.counts[token % 8 * 64 + expert(rng)];
    const std::vector<int32_t> shares = run_split(c);
    expect_conserved(c, shares);
    const int64_t peak = std::get<0>(quality_of(c, shares));
    EXPECT_EQ(peak, peak_of_worst_subset(c));
    const SplitTable table(c.placement, 0);
    Workspace workspace(split_workspace_bytes(table));
    std::vector<int32_t> dealt(shares.size());
    split_tokens(SplitRule::kRoundRobin, table, c.counts, workspace, dealt);
    EXPECT_LT(static_cast<double>(peak),
              0.95 * static_cast<double>(std::get<0>(quality_of(c, dealt))));
  }
}

TEST(ExactSplit, OwnRankThenOwnNode) {
  // Expert 0 on ranks 0, 2 and 3; ranks 0, 1 and 2, 3 share nodes. Every rank brings 3 tokens.
  const Case c{Placement(1, 2, {1, 1, 1, 1}, {0, 1, 0, 0}), {0, 0, 1, 1}, {3, 0, 3, 0, 3, 0, 3, 0}};
  const std::vector<int32_t> shares = run_split(c);
  // Peak 4: each keeps its own; of rank 1's tokens only one finds room on its node.
  EXPECT_EQ(shares, (std::vector<int32_t>{3, 0, 0, 0, 1, 0, 1, 1, 0, 0, 3, 0, 0, 0, 0, 3}));
}

TEST(ExactSplit, NoTokens) {
  Case c{Placement(1, 2, {2, 1}, {0, 1, 0}), {0, 0}, {0, 0, 0, 0}};
  EXPECT_EQ(run_split(c), std::vector<int32_t>(6, 0));
}

TEST(ExactSplit, SecondReplicaOnARankGetsNothing) {
  const Case c{Placement(1, 1, {2, 1}, {0, 0, 0}), {0, 0}, {5, 1}};
  EXPECT_EQ(run_split(c), (std::vector<int32_t>{3, 0, 2, 0, 0, 1}));
}

TEST(ExactSplit, SameSharesFromAUsedWorkspaceAndNoAllocation) {
  std::mt19937 rng(4);
  for (int i = 0; i < 50; ++i) {
    const Case c = random_case(rng, 8, 4, 16, 50);
    const SplitTable table(c.placement, 0, c.nodes);
    Workspace workspace(split_workspace_bytes(table) + 4096);
    std::vector<int32_t> first(c.ranks() * static_cast<size_t>(table.num_slots));
    std::vector<int32_t> second(first.size(), 99);
    split_tokens(SplitRule::kSplit, table, c.counts, workspace, first);
    const std::span<std::byte> dirt = workspace.take<std::byte>(split_workspace_bytes(table));
    std::fill(dirt.begin(), dirt.end(), std::byte{0xa5});
    workspace.release(0);
    const int64_t before = allocation_count();
    split_tokens(SplitRule::kSplit, table, c.counts, workspace, second);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_EQ(first, second);
  }
}

TEST(ExactSplit, NoPlacementOfTheSizesTakesMoreThanTheBound) {
  std::mt19937 rng(5);
  size_t reached = 0;
  for (int i = 0; i < 2000; ++i) {
    const Case c = random_case(rng, 8, 4, 16, 1);
    const SplitTable table(c.placement, 0, c.nodes);
    const size_t bound = split_workspace_bytes(table.num_ranks, table.num_experts, table.num_slots);
    ASSERT_LE(split_workspace_bytes(table), bound) << "case " << i;
    reached += split_workspace_bytes(table) == bound ? 1 : 0;
  }
  EXPECT_GT(reached, 0U);
  EXPECT_THROW(split_workspace_bytes(2, 4, 3), InvalidArgument);
}

TEST(ExactSplit, RefusesATooSmallWorkspace) {
  const SplitTable table(Placement(1, 2, {2, 1}, {0, 1, 0}), 0);
  Workspace workspace(split_workspace_bytes(table) - 64);
  const std::vector<int32_t> counts(4, 1);
  std::vector<int32_t> shares(6);
  EXPECT_THROW(split_tokens(SplitRule::kSplit, table, counts, workspace, shares), InvalidArgument);
  EXPECT_EQ(workspace.mark(), 0u);
}

}  // namespace
}  // namespace trimtab
