// SPDX-License-Identifier: Apache-2.0
#include "policy/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 62;

std::vector<Offer> random_offers(std::mt19937& random, int count) {
  std::vector<Offer> offers;
  for (int i = 0; i < count; ++i) {
    const auto moves = static_cast<int64_t>(random() % 7);
    offers.push_back({moves, static_cast<double>(random() % 1000) / 100 - 1});
  }
  std::vector<Offer> kept;
  for (const int i : worthwhile(offers, 64)) kept.push_back(offers[cells(i)]);
  return kept;
}

// The largest sum of gains by trying everything, layer after layer.
double best_gain(const std::vector<std::vector<Offer>>& layers, size_t layer, int64_t moves,
                 int64_t changes) {
  if (layer == layers.size()) return 0;
  double best = best_gain(layers, layer + 1, moves, changes);
  for (const Offer& offer : layers[layer]) {
    if (offer.moves > moves || changes == 0) continue;
    best =
        std::max(best, offer.gain + best_gain(layers, layer + 1, moves - offer.moves, changes - 1));
  }
  return best;
}

struct Sum {
  int64_t moves = 0, changes = 0;
  double gain = 0;
};

Sum sum_of(const std::vector<std::vector<Offer>>& layers, const std::vector<int>& chosen) {
  Sum sum;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (chosen[l] < 0) continue;
    const Offer offer = layers[l][cells(chosen[l])];
    sum = {sum.moves + offer.moves, sum.changes + 1, sum.gain + offer.gain};
  }
  return sum;
}

TEST(Budget, IsAsGoodAsTryingEverything) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<std::vector<Offer>> layers;
    for (int l = 0; l < 4; ++l) layers.push_back(random_offers(random, round % 6));
    const int64_t max_layers = round % 3 == 0 ? kNoLimit : static_cast<int64_t>(random() % 5);
    const int64_t max_moves = round % 4 == 0 ? kNoLimit : static_cast<int64_t>(random() % 16);
    const Budget budget(layers, max_moves, max_layers);
    for (int64_t moves = 0; moves <= budget.most_moves(); ++moves) {
      const Sum sum = sum_of(layers, budget.choose(moves));
      EXPECT_LE(sum.moves, moves);
      EXPECT_LE(sum.changes, max_layers);
      EXPECT_NEAR(sum.gain, best_gain(layers, 0, moves, max_layers), 1e-9);
    }
  }
}

// So many layers and moves that the table would be too large: concave offers, of which the hull is
// the optimum wherever a step ends.
TEST(Budget, GoesAlongTheHullWhereTheTableIsTooLarge) {
  std::vector<std::vector<Offer>> layers(400);
  for (size_t l = 0; l < layers.size(); ++l) {
    double gain = 0;
    for (int64_t i = 1; i <= 60; ++i) {
      gain += 1.0 / static_cast<double>(i + static_cast<int64_t>(l % 7));
      layers[l].push_back({100 * i, gain});
    }
  }
  const Budget budget(layers, kNoLimit, kNoLimit);
  std::vector<double> steps;
  for (const std::vector<Offer>& offers : layers) {
    double last = 0;
    for (const Offer& offer : offers) {
      steps.push_back(offer.gain - last);
      last = offer.gain;
    }
  }
  std::ranges::sort(steps, std::greater());
  for (const int64_t count : {0, 1, 37, 1000, 24000}) {
    const Sum sum = sum_of(layers, budget.choose(100 * count));
    EXPECT_LE(sum.moves, 100 * count);
    double expected = 0;
    for (const double step : std::span(steps).first(cells(count))) expected += step;
    EXPECT_NEAR(sum.gain, expected, 1e-6) << count;
  }
  const Budget few(layers, kNoLimit, 3);
  EXPECT_LE(sum_of(layers, few.choose(15'000)).changes, 3);
  EXPECT_GT(sum_of(layers, few.choose(15'000)).moves, 14'000);
}

TEST(Worthwhile, LeavesOutWhatIsBeatenAndThinsOut) {
  const std::vector<Offer> offers = {{3, 2.0}, {1, 1.0}, {2, 0.5}, {0, -1}, {1, 1.5}, {4, 2.0}};
  EXPECT_EQ(worthwhile(offers, 64), (std::vector<int>{4, 0}));
  std::vector<Offer> many;
  for (int64_t i = 1; i <= 1000; ++i) many.push_back({i, static_cast<double>(i)});
  const std::vector<int> kept = worthwhile(many, 64);
  EXPECT_LE(kept.size(), 96U);
  EXPECT_EQ(kept.front(), 0);
  EXPECT_EQ(kept.back(), 999);
}

}  // namespace
}  // namespace trimtab
