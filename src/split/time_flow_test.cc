// SPDX-License-Identifier: Apache-2.0
// The rule `time` against enumeration of all splits, and against the bound that subsets of ranks
// give.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "base/allocation_count.h"
#include "split/testing.h"
#include "trimtab/error.h"
#include "trimtab/split.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

struct Case {
  Placement placement;
  CostModel cost;
  std::vector<int32_t> counts;  // [ranks, experts]

  int ranks() const { return placement.num_ranks(); }
  int experts() const { return placement.num_experts(); }
  int64_t total(int expert) const {
    int64_t sum = 0;
    for (int r = 0; r < ranks(); ++r) sum += counts[cells(r * experts() + expert)];
    return sum;
  }
  // The ranks that hold an expert, each once.
  std::vector<int> homes(int expert) const {
    std::vector<int> ranks;
    for (int slot = 0; slot < placement.num_slots(); ++slot) {
      const int rank = placement.rank_of_slot(slot);
      if (placement.logical(0)[cells(slot)] == expert && (ranks.empty() || ranks.back() != rank))
        ranks.push_back(rank);
    }
    return ranks;
  }
};

// From weights that cost all to rows that cost all.
CostModel cost_of_kind(int kind, std::vector<int32_t> speeds = {}) {
  switch (kind) {
    case 0:
      return CostModel({{1, 1000}, {2, 1001}}, speeds);
    case 1:
      return CostModel({{1, 1000}, {17, 1400}}, speeds);
    case 2:
      return CostModel({{1, 1000}, {4, 1060}, {8, 1400}, {16, 2600}}, speeds);
    case 3:
      return CostModel({{1, 300}, {9, 1100}}, speeds);
    case 4:
      return CostModel({{1, 120}, {101, 10120}}, speeds);
    default:
      // Rows go through in blocks of four.
      return CostModel({{1, 500}, {4, 500}, {5, 700}, {8, 700}, {9, 900}, {12, 900}}, speeds);
  }
}
constexpr int kCostKinds = 6;

Case random_case(std::mt19937& rng, int max_ranks, int max_slots, int max_experts, int max_count,
                 bool speeds = false) {
  const Placement placement = test::random_placement(rng, max_ranks, max_slots, max_experts);
  std::vector<int32_t> speed;
  for (int r = 0; speeds && r < placement.num_ranks(); ++r)
    speed.push_back(test::draw(rng, 1, 4) * 500);
  const CostModel cost = cost_of_kind(test::draw(rng, 0, kCostKinds - 1), speed);
  return {placement, cost, test::random_counts(rng, placement, max_count)};
}

std::vector<int32_t> split_by(SplitRule rule, const Case& c) {
  const SplitTable table(c.placement, 0);
  Workspace workspace(split_workspace_bytes(table));
  std::vector<int32_t> shares(cells(table.num_ranks, table.num_slots), -7);
  split_tokens(rule, table, c.counts, workspace, shares, &c.cost);
  EXPECT_EQ(workspace.mark(), 0U);
  return shares;
}

void expect_conserved(const Case& c, std::span<const int32_t> shares) {
  const std::span<const int32_t> logical = c.placement.logical(0);
  for (int r = 0; r < c.ranks(); ++r) {
    std::vector<int32_t> sum(cells(c.experts()), 0);
    for (size_t s = 0; s < logical.size(); ++s) {
      const int32_t share = shares[cells(r) * logical.size() + s];
      ASSERT_GE(share, 0);
      sum[cells(logical[s])] += share;
    }
    for (int e = 0; e < c.experts(); ++e)
      ASSERT_EQ(sum[cells(e)], c.counts[cells(r * c.experts() + e)]);
  }
}

// The time of a rank with some work, written down a second time.
int64_t slowed(const CostModel& cost, int64_t work, int rank) {
  if (cost.speeds().empty()) return work;
  const int64_t speed = cost.speeds()[cells(rank)];
  return (work * 1000 + speed - 1) / speed;
}

int64_t peak_time(const Case& c, std::span<const int32_t> shares) {
  const std::span<const int32_t> logical = c.placement.logical(0);
  std::vector<int64_t> work(cells(c.ranks()));
  for (size_t s = 0; s < logical.size(); ++s) {
    int64_t rows = 0;
    for (int r = 0; r < c.ranks(); ++r) rows += shares[cells(r) * logical.size() + s];
    work[cells(c.placement.rank_of_slot(static_cast<int>(s)))] += c.cost.time(rows);
  }
  int64_t peak = 0;
  for (int r = 0; r < c.ranks(); ++r) peak = std::max(peak, slowed(c.cost, work[cells(r)], r));
  return peak;
}

// Tries every way to share every expert's tokens over the ranks that hold it.
class Enumeration {
 public:
  explicit Enumeration(const Case& c) : case_(c), work_(cells(c.ranks()), 0) {
    for (int e = 0; e < c.experts(); ++e) homes_.push_back(c.homes(e));
  }
  int64_t best() {
    share(0, 0, case_.total(0));
    return best_;
  }

 private:
  void share(int expert, size_t home, int64_t left) {
    const std::vector<int>& homes = homes_[cells(expert)];
    const bool last = home + 1 == homes.size();
    int64_t& work = work_[cells(homes[home])];
    for (int64_t here = last ? left : 0; here <= left; ++here) {
      const int64_t time = case_.cost.time(here);
      work += time;
      if (slowed(case_.cost, work, homes[home]) < best_) {
        if (!last) {
          share(expert, home + 1, left - here);
        } else if (expert + 1 < case_.experts()) {
          share(expert + 1, 0, case_.total(expert + 1));
        } else {
          int64_t peak = 0;
          for (int r = 0; r < case_.ranks(); ++r)
            peak = std::max(peak, slowed(case_.cost, work_[cells(r)], r));
          best_ = std::min(best_, peak);
        }
      }
      work -= time;
    }
  }

  const Case& case_;
  std::vector<std::vector<int>> homes_;
  std::vector<int64_t> work_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
};

double num_splits(const Case& c) {
  double product = 1;
  for (int e = 0; e < c.experts(); ++e) {
    const auto copies = static_cast<int64_t>(c.homes(e).size());
    for (int64_t i = 1; i < copies; ++i)
      product *= static_cast<double>(c.total(e) + i) / static_cast<double>(i);
  }
  return product;
}

// The least time of an expert's ranks if it were alone: whatever their speeds, one gets its part.
int64_t least_time_alone(const Case& c, int expert) {
  const std::vector<int> homes = c.homes(expert);
  const auto ranks = static_cast<int64_t>(homes.size());
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t tokens = (c.total(expert) + ranks - 1) / ranks;
  for (const int rank : homes) least = std::min(least, slowed(c.cost, c.cost.time(tokens), rank));
  return least;
}

// From below: experts that live only on some ranks S load these with at least their work together,
// since no cost above takes less time on two ranks than on one.
int64_t bound_of_worst_subset(const Case& c) {
  std::vector<uint32_t> homes;
  std::vector<int64_t> work;
  for (int e = 0; e < c.experts(); ++e) {
    homes.push_back(0);
    for (const int rank : c.homes(e)) homes.back() |= 1U << rank;
    work.push_back(c.cost.time(c.total(e)));
  }
  int64_t bound = 0;
  for (int e = 0; e < c.experts(); ++e) bound = std::max(bound, least_time_alone(c, e));
  for (uint32_t subset = 1; subset < 1U << c.ranks(); ++subset) {
    int64_t inside = 0;
    for (size_t e = 0; e < homes.size(); ++e) inside += (homes[e] & ~subset) == 0 ? work[e] : 0;
    int64_t speed = 0;
    for (int r = 0; r < c.ranks(); ++r) {
      if ((subset >> r & 1) != 0)
        speed += c.cost.speeds().empty() ? 1000 : c.cost.speeds()[cells(r)];
    }
    bound = std::max(bound, (inside * 1000 + speed - 1) / speed);
  }
  return bound;
}

struct Gaps {
  int cases = 0, optimal = 0;
  double sum = 0, worst = 0;
  void add(int64_t found, int64_t best) {
    ++cases;
    optimal += found == best ? 1 : 0;
    if (best == 0) return;
    const double gap = static_cast<double>(found) / static_cast<double>(best) - 1;
    sum += gap;
    worst = std::max(worst, gap);
  }
};

Gaps gaps_to_enumeration(uint32_t seed, int max_ranks, int max_slots, int max_experts,
                         int max_count, bool speeds) {
  std::mt19937 rng(seed);
  Gaps gaps;
  for (int i = 0; gaps.cases < 600; ++i) {
    const Case c = random_case(rng, max_ranks, max_slots, max_experts, max_count, speeds);
    if (num_splits(c) > 3e5) continue;
    const std::vector<int32_t> shares = split_by(SplitRule::kTime, c);
    expect_conserved(c, shares);
    const int64_t best = Enumeration(c).best();
    const int64_t found = peak_time(c, shares);
    EXPECT_GE(found, best) << "case " << i;
    gaps.add(found, best);
  }
  return gaps;
}

// The gaps are those that were measured. A worst one is one block of rows too many, where an expert
// is a fifth of the peak.
void expect_small(const Gaps& gaps) {
  EXPECT_GE(gaps.optimal, gaps.cases * 99 / 100) << "of " << gaps.cases;
  EXPECT_LE(gaps.sum / gaps.cases, 0.0006);
  EXPECT_LE(gaps.worst, 0.215);
}

TEST(TimeFlow, IsNearTheBestOfAllSplits) {
  expect_small(gaps_to_enumeration(1, 4, 3, 6, 6, false));
  expect_small(gaps_to_enumeration(2, 4, 4, 8, 2, false));
}

TEST(TimeFlow, IsNearTheBestOfAllSplitsAtUnequalSpeeds) {
  expect_small(gaps_to_enumeration(3, 4, 3, 6, 5, true));
}

// Larger than what can be enumerated. The bound is not always in reach.
TEST(TimeFlow, IsNearTheBoundOfTheWorstSubsetOfRanks) {
  std::mt19937 rng(4);
  Gaps gaps;
  for (int i = 0; i < 600; ++i) {
    const Case c = random_case(rng, 8, 8, 32, i % 2 == 0 ? 2 : 40, i % 3 == 0);
    const std::vector<int32_t> shares = split_by(SplitRule::kTime, c);
    expect_conserved(c, shares);
    const int64_t bound = bound_of_worst_subset(c), found = peak_time(c, shares);
    ASSERT_GE(found, bound) << "case " << i;
    gaps.add(found, bound);
  }
  EXPECT_GE(gaps.optimal, gaps.cases / 2);
  EXPECT_LE(gaps.sum / gaps.cases, 0.06);
}

// Where reading weights is all that costs, the problem is a matching, whose best is known: `split`
// of one token for each expert that has any.
TEST(TimeFlow, ReadsTheFewestExpertsWhereWeightsCostAll) {
  std::mt19937 rng(5);
  for (int i = 0; i < 400; ++i) {
    Case c = random_case(rng, 8, 8, 40, 2);
    c.cost = CostModel({{1, 1'000'000}, {2, 1'000'001}});
    const int64_t reads = peak_time(c, split_by(SplitRule::kTime, c)) / 1'000'000;
    for (int e = 0; e < c.experts(); ++e) {
      const bool any = c.total(e) > 0;
      for (int r = 0; r < c.ranks(); ++r) c.counts[cells(r * c.experts() + e)] = any && r == 0;
    }
    c.cost = CostModel::of_rows();
    const int64_t least = peak_time(c, split_by(SplitRule::kSplit, c));
    ASSERT_GE(reads, least);
    EXPECT_LE(reads, least) << "case " << i;
  }
}

TEST(TimeFlow, IsSplitWhereRowsCostTheSame) {
  std::mt19937 rng(6);
  for (int i = 0; i < 100; ++i) {
    Case c = random_case(rng, 8, 4, 16, 30);
    c.cost = CostModel({{3, 600}, {4, 800}});
    ASSERT_EQ(split_by(SplitRule::kTime, c), split_by(SplitRule::kSplit, c)) << "case " << i;
  }
}

// Nearly so: the search has to find what the flow does.
TEST(TimeFlow, IsAsLevelAsSplitWhereArithmeticCostsMost) {
  std::mt19937 rng(7);
  double worst = 0;
  for (int i = 0; i < 200; ++i) {
    Case c = random_case(rng, 8, 6, 24, 200);
    c.cost = CostModel({{1, 1001}, {2, 2001}});
    const auto best = static_cast<double>(peak_time(c, split_by(SplitRule::kSplit, c)));
    const auto found = static_cast<double>(peak_time(c, split_by(SplitRule::kTime, c)));
    if (best > 0) worst = std::max(worst, found / best - 1);
  }
  EXPECT_LE(worst, 0.02);
}

TEST(TimeFlow, RanksThatAreSlowGetLess) {
  // Two copies of one expert; the second rank takes three times as long.
  const Case c{
      Placement(1, 1, {1, 1}, {0, 0}), CostModel({{1, 20}, {2, 30}}, {1500, 500}), {60, 60}};
  const std::vector<int32_t> shares = split_by(SplitRule::kTime, c);
  EXPECT_NEAR(shares[0] + shares[2], 91, 2);
}

TEST(TimeFlow, CountsWhatComesFromOtherRanks) {
  // Half of the tokens for each rank are the least time, unless the wire costs more than rows do.
  Case c{Placement(1, 1, {1, 1}, {0, 0}), CostModel({{1, 900}, {2, 901}}), {1, 9}};
  EXPECT_EQ(split_by(SplitRule::kTime, c), (std::vector<int32_t>{1, 0, 4, 5}));
  c.cost = CostModel({{1, 900}, {2, 901}}, {}, 100);
  EXPECT_EQ(split_by(SplitRule::kTime, c), (std::vector<int32_t>{1, 0, 0, 9}));
  const SplitTable table(c.placement, 0);
  std::vector<int64_t> times(2);
  split_rank_times(table, std::vector<int32_t>{1, 0, 4, 5}, c.cost, times);
  EXPECT_EQ(times, (std::vector<int64_t>{904 + 400, 904}));
}

TEST(TimeFlow, RankTimesAreThoseOfTheSlots) {
  std::mt19937 rng(8);
  for (int i = 0; i < 100; ++i) {
    const Case c = random_case(rng, 6, 4, 12, 20, i % 2 == 0);
    const SplitTable table(c.placement, 0);
    const std::vector<int32_t> shares = split_by(SplitRule::kRoundRobin, c);
    std::vector<int64_t> times(cells(c.ranks()));
    split_rank_times(table, shares, c.cost, times);
    ASSERT_EQ(*std::ranges::max_element(times), peak_time(c, shares));
  }
}

TEST(TimeFlow, NoTokensAndNoReplicas) {
  const CostModel cost({{1, 9}});
  EXPECT_EQ(split_by(SplitRule::kTime, {Placement(1, 2, {2, 1}, {0, 1, 0}), cost, {0, 0, 0, 0}}),
            std::vector<int32_t>(6, 0));
  EXPECT_EQ(split_by(SplitRule::kTime, {Placement(1, 2, {1, 1}, {0, 1}), cost, {1, 2, 3, 4}}),
            (std::vector<int32_t>{1, 2, 3, 4}));
}

TEST(TimeFlow, CountsNearTheTypesEnd) {
  Case c{Placement(1, 2, {2, 2}, {0, 1, 1, 0}), CostModel({{1, 500}, {2, 510}}), {}};
  c.counts = {2147483647, 2147483646, 2147483647, 0};
  const std::vector<int32_t> shares = split_by(SplitRule::kTime, c);
  expect_conserved(c, shares);
  EXPECT_LE(peak_time(c, shares), 500 + 10 * (int64_t{3} * 2147483647 / 2) + 1000);
}

TEST(TimeFlow, SameSharesFromAUsedWorkspaceAndNoAllocation) {
  std::mt19937 rng(9);
  for (int i = 0; i < 50; ++i) {
    const Case c = random_case(rng, 8, 4, 16, 50, i % 2 == 0);
    const SplitTable table(c.placement, 0);
    Workspace workspace(split_workspace_bytes(table));
    const std::vector<int32_t> first = split_by(SplitRule::kTime, c);
    std::vector<int32_t> second(first.size(), 99);
    const std::span<std::byte> dirt = workspace.take<std::byte>(split_workspace_bytes(table));
    std::ranges::fill(dirt, std::byte{0xa5});
    workspace.release(0);
    const int64_t before = allocation_count();
    split_tokens(SplitRule::kTime, table, c.counts, workspace, second, &c.cost);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_EQ(first, second);
  }
}

TEST(TimeFlow, NeedsACostModelOfTheseRanks) {
  const Case c{
      Placement(1, 2, {2, 1}, {0, 1, 0}), CostModel({{1, 9}}, {500, 1000, 900}), {1, 1, 1, 1}};
  const SplitTable table(c.placement, 0);
  Workspace workspace(split_workspace_bytes(table));
  std::vector<int32_t> shares(6);
  const auto refusal = [&](const CostModel* cost) -> std::string {
    try {
      split_tokens(SplitRule::kTime, table, c.counts, workspace, shares, cost);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(nullptr), "split rule time needs a cost model");
  EXPECT_EQ(refusal(&c.cost), "the cost model has speeds of 3 ranks, expected 2");
}

}  // namespace
}  // namespace trimtab
