// SPDX-License-Identifier: Apache-2.0
// The bounds against all placements of small layers, those with duplicates too.
#include "policy/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "policy/pair_bound.h"
#include "policy/small_bound.h"
#include "trimtab/policy.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

struct Case {
  std::vector<int32_t> first_slots;
  std::vector<int64_t> load;  // [experts]

  int num_experts() const { return static_cast<int>(load.size()); }
  SlotRanges slots() const { return SlotRanges(first_slots); }
};

// The peak when each expert's tokens are shared equally among its slots.
double equal_peak(const Case& c, const std::vector<int32_t>& placement) {
  std::vector<int> replicas(c.load.size(), 0);
  for (const int32_t e : placement) ++replicas[e];
  double peak = 0;
  for (int r = 0; r < c.slots().num_ranks(); ++r) {
    double sum = 0;
    for (int s = c.slots().first(r); s < c.slots().end(r); ++s) {
      sum += static_cast<double>(c.load[placement[s]]) / replicas[placement[s]];
    }
    peak = std::max(peak, sum);
  }
  return peak;
}

// The least peak when tokens are shared freely: experts that live only on a set of ranks load these
// with their sum, and for the worst set this is reached.
double free_peak(const Case& c, const std::vector<int32_t>& placement) {
  std::vector<uint32_t> homes(c.load.size(), 0);
  for (int s = 0; s < c.slots().num_slots(); ++s) homes[placement[s]] |= 1U << c.slots().rank_of(s);
  double peak = 0;
  for (uint32_t set = 1; set < 1U << c.slots().num_ranks(); ++set) {
    double inside = 0;
    for (int e = 0; e < c.num_experts(); ++e) {
      if ((homes[e] & ~set) == 0) inside += static_cast<double>(c.load[e]);
    }
    peak = std::max(peak, inside / std::popcount(set));
  }
  return peak;
}

// Whether a rank holds an expert twice although it could hold different ones.
bool has_needless_duplicate(const Case& c, const std::vector<int32_t>& placement) {
  for (int r = 0; r < c.slots().num_ranks(); ++r) {
    std::vector<int> held(c.load.size(), 0);
    for (const int32_t e : c.slots().of(r, std::span(placement))) ++held[e];
    if (std::ranges::max(held) > std::max(1, std::ranges::min(held) + 1)) return true;
  }
  return false;
}

struct Least {
  double equal = std::numeric_limits<double>::infinity();  // of placements without duplicates
  double equal_with_duplicates = std::numeric_limits<double>::infinity();  // of all
  double free = std::numeric_limits<double>::infinity();                   // of all
};

// Tries all placements but those that differ only in the order of a rank's slots, or of neighbour
// ranks of one size.
class Enumeration {
 public:
  explicit Enumeration(const Case& c) : case_(c), placement_(c.slots().num_slots(), 0) {}

  Least least() {
    fill(0, 0);
    return least_;
  }

 private:
  void fill(int rank, int slot) {
    const SlotRanges slots = case_.slots();
    if (rank == slots.num_ranks()) return consider();
    if (slot == slots.end(rank)) {
      if (is_in_order(rank)) fill(rank + 1, slot);
      return;
    }
    const int32_t least = slot > slots.first(rank) ? placement_[slot - 1] : 0;
    for (int32_t e = least; e < case_.num_experts(); ++e) {
      placement_[slot] = e;
      fill(rank, slot + 1);
    }
  }

  bool is_in_order(int rank) const {
    const SlotRanges slots = case_.slots();
    if (rank == 0 || slots.count(rank) != slots.count(rank - 1)) return true;
    const std::span placement(placement_);
    return !std::ranges::lexicographical_compare(slots.of(rank, placement),
                                                 slots.of(rank - 1, placement));
  }

  void consider() {
    for (int32_t e = 0; e < case_.num_experts(); ++e) {
      if (std::ranges::find(placement_, e) == placement_.end()) return;
    }
    const double equal = equal_peak(case_, placement_);
    least_.equal_with_duplicates = std::min(least_.equal_with_duplicates, equal);
    least_.free = std::min(least_.free, free_peak(case_, placement_));
    if (!has_needless_duplicate(case_, placement_)) least_.equal = std::min(least_.equal, equal);
  }

  const Case& case_;
  std::vector<int32_t> placement_;
  Least least_;
};

Case random_case(std::mt19937& random) {
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Case c;
  c.first_slots = {0};
  const int ranks = draw(2, 5);
  const bool pairs = draw(0, 3) > 0;  // two slots on each rank have a bound of their own
  for (int r = 0; r < ranks; ++r) {
    c.first_slots.push_back(c.first_slots.back() + (pairs ? 2 : draw(r == 0 ? 1 : 0, 2)));
  }
  const int experts = draw(1, std::min(5, c.first_slots.back()));
  const double spread = draw(0, 1) == 0 ? 0.002 : 0.009;  // up to 7 or 8,000 tokens
  for (int e = 0; e < experts; ++e) {
    c.load.push_back(static_cast<int64_t>(std::exp(spread * draw(0, 1000))));
  }
  if (draw(0, 3) == 0) c.load[0] += 2 * std::accumulate(c.load.begin(), c.load.end(), int64_t{0});
  return c;
}

TEST(PeakBounds, NoPlacementIsBelowThem) {
  std::mt19937 random(21);
  int raised_by_pairs = 0;
  int reached = 0;
  for (int round = 0; round < 300; ++round) {
    const Case c = random_case(random);
    SCOPED_TRACE(testing::Message() << testing::PrintToString(c.load) << " on "
                                    << testing::PrintToString(c.first_slots));
    const PeakBounds bounds = peak_bounds(c.load, c.first_slots);
    const Least least = Enumeration(c).least();
    constexpr double kRounding = 1 + 1e-9;
    // With equal shares, the bound is for placements in which no rank holds an expert twice.
    ASSERT_LE(bounds.equal, least.equal * kRounding);
    // With free shares it is for all placements, and so it is for equal shares.
    ASSERT_LE(bounds.exact, least.free * kRounding);
    ASSERT_LE(bounds.exact, least.equal_with_duplicates * kRounding);
    raised_by_pairs += bounds.equal > bounds.exact * kRounding ? 1 : 0;
    reached += least.equal < bounds.equal * (1 + 1e-6) ? 1 : 0;
  }
  EXPECT_GT(raised_by_pairs, 5);
  EXPECT_GT(reached, 50);
}

// 500 small layers of many shapes against what `optimal` proves by a search of its own.
TEST(PeakBounds, AreCloseToTheOptimumOfSmallLayers) {
  std::mt19937 random(22);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  std::vector<double> gaps;
  for (int round = 0; round < 500; ++round) {
    const int ranks = draw(2, 8);
    const int slots = draw(2, ranks > 5 ? 2 : ranks > 3 ? 3 : 4);
    const int experts = draw(std::max(slots, ranks * slots / 3), std::min(10, ranks * slots));
    Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
    const double spread = 0.001 * draw(1, 9);
    for (int e = 0; e < experts; ++e)
      load.counts.push_back(static_cast<int64_t>(10 * std::exp(spread * draw(0, 1000))));
    const Placement current = default_placement(1, experts, std::vector<int>(ranks, slots));
    SCOPED_TRACE(testing::Message() << testing::PrintToString(load.counts) << " on " << ranks << "x"
                                    << slots << ", seed 22");
    const PeakBounds bounds = peak_bounds(load.counts, current.first_slots());
    const double mean =
        std::accumulate(load.counts.begin(), load.counts.end(), 0.0) / current.num_ranks();
    const double optimum =
        mean *
        make_policy("optimal")->rebalance({.load = load, .current = current}).layers[0].par_after;
    ASSERT_LE(bounds.equal, optimum * (1 + 1e-9));
    ASSERT_LE(bounds.exact, bounds.equal * (1 + 1e-9));
    gaps.push_back(optimum / bounds.equal - 1);
  }
  std::ranges::sort(gaps);
  EXPECT_LE(gaps[gaps.size() / 2], 1e-6) << "median";
  EXPECT_LE(gaps[gaps.size() * 9 / 10], 0.001) << "nine tenths";
  EXPECT_LE(gaps.back(), 0.05) << "largest";
}

// Ranks of one or two slots, too many for the exhaustive search to play a part.
TEST(PairBound, IsBelowTheOptimumAndRaisesTheSimpleBound) {
  std::mt19937 random(23);
  int raised = 0;
  for (int round = 0; round < 200; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 6);
    std::vector<int> slots;
    for (int r = 0; r < ranks; ++r) slots.push_back(random() % 4 == 0 ? 1 : 2);
    slots.front() = 2;
    const int num_slots = std::accumulate(slots.begin(), slots.end(), 0);
    const int experts = std::max(2, num_slots / 2 + static_cast<int>(random() % 3) - 1);
    Load load{.num_steps = 1, .num_layers = 1, .num_experts = experts, .counts = {}};
    for (int e = 0; e < experts; ++e)
      load.counts.push_back(
          static_cast<int64_t>(10 * std::exp(0.006 * static_cast<double>(random() % 1000))));
    const Placement current = default_placement(1, experts, slots);
    const double mean = std::accumulate(load.counts.begin(), load.counts.end(), 0.0) / ranks;
    const double optimum =
        mean *
        make_policy("optimal")->rebalance({.load = load, .current = current}).layers[0].par_after;
    BoundedLayer layer{
        .load = {load.counts.begin(), load.counts.end()}, .slots = slots, .num_slots = num_slots};
    std::ranges::sort(layer.load, std::greater());
    std::ranges::sort(layer.slots, std::greater());
    const double high = greedy_peak(layer);
    EXPECT_GE(high, optimum * (1 - 1e-6));
    // From a peak far below, so that the bound must prove every step by itself.
    const double bound = pair_bound(layer, 0.5 * mean, std::numeric_limits<double>::infinity());
    ASSERT_LE(bound, optimum * (1 + 1e-9))
        << testing::PrintToString(load.counts) << " in " << testing::PrintToString(slots)
        << ", seed 23, round " << round;
    const double simple = peak_bounds(load.counts, current.first_slots()).exact;
    raised += bound > simple * 1.001 ? 1 : 0;
  }
  EXPECT_GT(raised, 50);
}

// 256 experts on 144 ranks of two slots, as in large deployments: the plan is near the bound, and
// never below it.
TEST(PairBound, IsCloseToPlansOfLargeLayers) {
  std::mt19937 random(24);
  for (const double sigma : {1.0, 1.5}) {
    Load load{.num_steps = 1, .num_layers = 1, .num_experts = 256, .counts = {}};
    for (int e = 0; e < 256; ++e) {
      double normal = -6;  // the sum of twelve uniform numbers is near enough
      for (int i = 0; i < 12; ++i) normal += static_cast<double>(random()) / 4294967296.0;
      load.counts.push_back(static_cast<int64_t>(10000 * std::exp(sigma * normal)));
    }
    const Placement current = default_placement(1, 256, std::vector<int>(144, 2));
    const LayerPrediction p =
        make_policy("trim")->rebalance({.load = load, .current = current}).layers[0];
    EXPECT_LE(p.bound_equal, p.par_after * (1 + 1e-9)) << sigma;
    EXPECT_GE(p.bound_equal, p.par_after / 1.01) << sigma;
    EXPECT_GE(p.bound_equal, p.bound_exact) << sigma;
  }
}

// FlashLB's example: the proved optimum is 560 / 3 + 10.
TEST(PeakBounds, OfFlashLbsExampleIsItsOptimum) {
  const std::vector<int64_t> load = {600, 560, 120, 120, 20, 10, 10, 10};
  const Placement current = default_placement(1, 8, std::vector<int>(8, 2));
  EXPECT_NEAR(peak_bounds(load, current.first_slots()).equal, 560.0 / 3 + 10, 1e-3);
}

// The bound of `optimal` is the optimum among placements without duplicates. Four slots of a hot
// expert on two ranks can do better than three on three ranks.
TEST(PeakBounds, ADuplicateCanBeatTheOptimum) {
  const Case c{.first_slots = {0, 2, 4, 6}, .load = {4000, 1000, 1000}};
  const Load load{.num_steps = 1, .num_layers = 1, .num_experts = 3, .counts = c.load};
  const Placement current = default_placement(1, 3, {2, 2, 2});
  const LayerPrediction p =
      make_policy("optimal")->rebalance({.load = load, .current = current}).layers[0];
  const Least least = Enumeration(c).least();
  EXPECT_NEAR(2000 * p.bound_equal, least.equal, 1e-2);
  EXPECT_NEAR(least.equal, 4000.0 / 3 + 1000, 1e-9);
  EXPECT_NEAR(least.equal_with_duplicates, 2000, 1e-9);
  EXPECT_NEAR(equal_peak(c, {0, 0, 0, 0, 1, 2}), 2000, 1e-9);
  EXPECT_DOUBLE_EQ(p.bound_exact, 1.0);
}

}  // namespace
}  // namespace trimtab
