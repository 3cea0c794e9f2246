// SPDX-License-Identifier: Apache-2.0
#include "trimtab/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(Par, PeakOverMean) {
  const auto of = [](std::vector<int64_t> loads) { return par(loads); };
  EXPECT_EQ(of({5, 5, 5}), 1.0);
  EXPECT_EQ(of({9, 0, 0}), 3.0);
  EXPECT_EQ(of({3, 1}), 1.5);
  EXPECT_EQ(of({0, 0, 0, 4}), 4.0);
  EXPECT_EQ(of({7}), 1.0);
}

TEST(Par, LevelWhenNothingWasRouted) {
  EXPECT_EQ(par({}), 1.0);
  EXPECT_EQ(par(std::vector<int64_t>{0, 0}), 1.0);
}

TEST(RankLoad, AddsTheExpertsOfEachRank) {
  const std::vector<int64_t> load = {1, 10, 100, 1000, 10000};
  EXPECT_EQ(rank_load(Placement::linear(1, 5, 2), 0, load), (std::vector<int64_t>{111, 11000}));
  const Placement permuted(2, 5, {2, 0, 3}, {0, 1, 2, 3, 4, 4, 0, 3, 2, 1});
  EXPECT_EQ(rank_load(permuted, 0, load), (std::vector<int64_t>{11, 0, 11100}));
  EXPECT_EQ(rank_load(permuted, 1, load), (std::vector<int64_t>{10001, 0, 1110}));
}

TEST(RankLoad, RefusesReplicasAndOtherSizes) {
  const std::vector<int64_t> two = {1, 2};
  EXPECT_THROW(rank_load(Placement(1, 2, {2, 1}, {0, 1, 0}), 0, two), InvalidArgument);
  EXPECT_THROW(rank_load(Placement::linear(1, 3, 1), 0, two), InvalidArgument);
  EXPECT_THROW(rank_load(Placement::linear(1, 2, 1), 1, two), InvalidArgument);
}

// From the definition, one layer at a time, without rank_load or par.
double par_from_scratch(const Placement& placement, const Load& load, int layer) {
  std::vector<double> ranks(placement.num_ranks());
  double sum = 0.0;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int e = 0; e < load.num_experts; ++e) {
      const auto held = placement.logical(layer);
      const auto slot = std::find(held.begin(), held.end(), e) - held.begin();
      const auto count = static_cast<double>(load.counts[static_cast<size_t>(
          (step * load.num_layers + layer) * load.num_experts + e)]);
      ranks[static_cast<size_t>(placement.rank_of_slot(static_cast<int>(slot)))] += count;
      sum += count;
    }
  }
  return sum == 0.0 ? 1.0
                    : *std::max_element(ranks.begin(), ranks.end()) /
                          (sum / static_cast<double>(ranks.size()));
}

TEST(ParPerLayer, EqualsTheDefinition) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int layers = 1 + static_cast<int>(random() % 4);
    const int experts = 1 + static_cast<int>(random() % 20);
    const int ranks = 1 + static_cast<int>(random() % 7);
    const Placement linear = Placement::linear(layers, experts, ranks);
    std::vector<int32_t> held;
    std::vector<int> slots;
    for (int r = 0; r < ranks; ++r) slots.push_back(linear.slots_of_rank(r));
    for (int l = 0; l < layers; ++l) {
      std::vector<int32_t> order(linear.logical(l).begin(), linear.logical(l).end());
      std::shuffle(order.begin(), order.end(), random);
      held.insert(held.end(), order.begin(), order.end());
    }
    const Placement placement(layers, experts, slots, held);
    Load load{static_cast<int64_t>(random() % 5), layers, experts, {}};
    load.counts.resize(static_cast<size_t>(load.num_steps * layers * experts));
    for (int64_t& c : load.counts) c = static_cast<int64_t>(random() % 100);
    const std::vector<double> got = par_per_layer(placement, load);
    ASSERT_EQ(got.size(), static_cast<size_t>(layers));
    for (int l = 0; l < layers; ++l) {
      ASSERT_NEAR(got[l], par_from_scratch(placement, load, l), 1e-12);
    }
  }
}

TEST(ParPerLayer, SumsStepsBeforeItTakesThePeak) {
  // Each step is skewed, one rank after the other; together they are level.
  const Load load{2, 1, 2, {8, 0, 0, 8}};
  EXPECT_EQ(par_per_layer(Placement::linear(1, 2, 2), load), (std::vector<double>{1.0}));
}

TEST(ParPerLayer, RefusesOtherShapes) {
  const Placement placement = Placement::linear(2, 3, 2);
  EXPECT_NO_THROW(par_per_layer(placement, {1, 2, 3, std::vector<int64_t>(6)}));
  EXPECT_THROW(par_per_layer(placement, {1, 1, 3, std::vector<int64_t>(3)}), InvalidArgument);
  EXPECT_THROW(par_per_layer(placement, {1, 2, 4, std::vector<int64_t>(8)}), InvalidArgument);
  EXPECT_THROW(par_per_layer(placement, {2, 2, 3, std::vector<int64_t>(6)}), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
