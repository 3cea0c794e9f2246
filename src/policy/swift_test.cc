// SPDX-License-Identifier: Apache-2.0
#include "policy/swift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "policy/policies.h"
#include "policy/static_placement.h"
#include "policy/testing.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

double par_of(std::span<const int32_t> placement, std::span<const int32_t> first_slots,
              std::span<const int64_t> load) {
  return par(rank_loads(placement, first_slots, load));
}

bool on_rank(std::span<const int32_t> placement, std::span<const int32_t> first_slots, size_t rank,
             int32_t expert) {
  return std::find(placement.begin() + first_slots[rank], placement.begin() + first_slots[rank + 1],
                   expert) != placement.begin() + first_slots[rank + 1];
}

// [ranks] of (expert) that arrive.
std::vector<std::vector<int32_t>> arrivals(std::span<const int32_t> from,
                                           std::span<const int32_t> to,
                                           std::span<const int32_t> first_slots) {
  std::vector<std::vector<int32_t>> out(first_slots.size() - 1);
  for (size_t r = 0; r < out.size(); ++r) {
    for (int32_t s = first_slots[r]; s < first_slots[r + 1]; ++s) {
      const int32_t e = to[s];
      if (!on_rank(from, first_slots, r, e)) out[r].push_back(e);
    }
  }
  return out;
}

// Can every arriving expert be fetched from a holder of its own? (Augmenting paths on experts x
// holders.)
bool one_sender_each(const std::vector<int32_t>& experts, std::span<const int32_t> from,
                     std::span<const int32_t> first_slots) {
  const size_t ranks = first_slots.size() - 1;
  std::vector<int> taker(ranks, -1);
  std::vector<bool> seen;
  const auto assign = [&](auto&& self, int i) -> bool {
    for (size_t r = 0; r < ranks; ++r) {
      if (seen[r] || !on_rank(from, first_slots, r, experts[i])) continue;
      seen[r] = true;
      if (taker[r] >= 0 && !self(self, taker[r])) continue;
      taker[r] = i;
      return true;
    }
    return false;
  };
  for (size_t i = 0; i < experts.size(); ++i) {
    seen.assign(ranks, false);
    if (!assign(assign, static_cast<int>(i))) return false;
  }
  return true;
}

std::vector<int64_t> zipf(std::mt19937& rng, size_t experts, double exponent) {
  std::vector<int64_t> load;
  for (size_t e = 1; e <= experts; ++e)
    load.push_back(static_cast<int64_t>(1e6 / std::pow(static_cast<double>(e), exponent)));
  for (size_t i = experts; i > 1; --i) std::swap(load[i - 1], load[rng() % i]);
  return load;
}

// All redundant slots are on the last ranks, as engines start: the refilled replicas must spread
// from there.
TEST(Swift, RedundantSlotsWhereverTheyAre) {
  std::mt19937 rng(1);
  const std::vector<int32_t> first_slots = equal_slots(16, 9);
  const std::vector<int32_t> linear = linear_placement(128, SlotRanges(first_slots));
  for (int i = 0; i < 10; ++i) {
    const std::vector<int64_t> load = zipf(rng, 128, 0.8);
    const std::vector<int32_t> placement = swift_placement(load, linear, SlotRanges(first_slots));
    EXPECT_GT(par_of(linear, first_slots, load), 1.3);
    EXPECT_LT(par_of(placement, first_slots, load), 1.05);
    size_t moves = 0;
    for (const auto& experts : arrivals(linear, placement, first_slots)) moves += experts.size();
    EXPECT_LT(moves, 65u);  // of 144 slots
  }
}

TEST(Swift, ARankSendsAtMostOneExpertToAnother) {
  std::mt19937 rng(2);
  for (int i = 0; i < 40; ++i) {
    const std::vector<int32_t> first_slots = equal_slots(8, 4 + i % 3);
    const std::vector<int64_t> load = zipf(rng, 28, 1.2);
    const std::vector<int32_t> current =
        random_placement(28, SlotRanges(first_slots), static_cast<uint64_t>(i));
    const std::vector<int32_t> placement = swift_placement(load, current, SlotRanges(first_slots));
    for (const auto& experts : arrivals(current, placement, first_slots)) {
      EXPECT_TRUE(one_sender_each(experts, current, first_slots)) << "case " << i;
    }
    EXPECT_LE(par_of(placement, first_slots, load), par_of(current, first_slots, load));
  }
}

TEST(Swift, KeepsThePlacementWhenLevelEnoughOrNothingIsGained) {
  const std::vector<int32_t> first_slots = equal_slots(2, 2);
  const std::vector<int32_t> current = {0, 1, 2, 3};
  EXPECT_EQ(swift_placement(std::vector<int64_t>{1000, 1000, 1005, 1000}, current,
                            SlotRanges(first_slots)),
            current);
  EXPECT_EQ(swift_placement(std::vector<int64_t>{100, 0, 50, 50}, current, SlotRanges(first_slots)),
            current);
  // One hot expert: a swap can't help, and there is no redundant slot.
  EXPECT_EQ(swift_placement(std::vector<int64_t>{100, 0, 10, 10}, current, SlotRanges(first_slots)),
            current);
}

// A busy first layer must not raise the bar for the others.
TEST(Swift, ThresholdsAreEachLayersOwn) {
  Load load{.num_steps = 1,
            .num_layers = 2,
            .num_experts = 4,
            .counts = {1000000, 1000000, 1000000, 1000000, 9, 7, 2, 2}};
  const Placement current(2, 4, {2, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
  const Plan plan = make_swift_policy({})->rebalance({.load = load, .current = current});
  EXPECT_EQ(plan.layers[0].par_after, 1.0);
  EXPECT_NEAR(plan.layers[1].par_after, 1.1, 1e-12);  // {9, 2} and {7, 2}
  EXPECT_EQ(plan.moves.size(), 2u);
}

TEST(Swift, NoSwapsAllowedMeansOnlyReplicasMove) {
  const std::vector<int32_t> first_slots = equal_slots(2, 3);
  const std::vector<int32_t> current = {0, 1, 2, 3, 2, 1};
  const std::vector<int64_t> load = {40, 10, 4, 6};
  SwiftOptions options;
  options.max_swaps = 0;
  const std::vector<int32_t> placement =
      swift_placement(load, current, SlotRanges(first_slots), options);
  EXPECT_EQ(std::count(placement.begin(), placement.end(), 0), 2);
  EXPECT_EQ(std::count(placement.begin(), placement.end(), 2), 1);
}

}  // namespace
}  // namespace trimtab
