// SPDX-License-Identifier: Apache-2.0
#include "trimtab/par.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace trimtab {
namespace {

TEST(Par, PeakOverMean) {
  const auto of = [](std::vector<int64_t> loads) {
    EXPECT_EQ(par(loads), par(std::vector<double>(loads.begin(), loads.end())));
    return par(loads);
  };
  EXPECT_EQ(of({5, 5, 5}), 1.0);
  EXPECT_EQ(of({9, 0, 0}), 3.0);
  EXPECT_EQ(of({3, 1}), 1.5);
  EXPECT_EQ(of({0, 0, 0, 4}), 4.0);
  EXPECT_EQ(of({7}), 1.0);
  EXPECT_DOUBLE_EQ(par(std::vector<double>{6, 5}), 12.0 / 11);
  EXPECT_EQ(balancedness(of({3, 1})), 1 / 1.5);
}

TEST(Par, LevelWhenNothingWasRouted) {
  EXPECT_EQ(par(std::vector<int64_t>{}), 1.0);
  EXPECT_EQ(par(std::vector<int64_t>{0, 0}), 1.0);
  EXPECT_EQ(par(std::vector<double>{0, 0}), 1.0);
}

// From the definition, one layer at a time, without rank_loads or par.
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

TEST(WindowPar, EqualsTheDefinition) {
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
    const std::vector<double> got = window_pars(rank_loads(placement, load));
    ASSERT_EQ(got.size(), static_cast<size_t>(layers));
    for (int l = 0; l < layers; ++l) {
      ASSERT_NEAR(got[l], par_from_scratch(placement, load, l), 1e-12);
    }
  }
}

TEST(WindowPar, SumsStepsBeforeItTakesThePeak) {
  // Each step is skewed, one rank after the other; together they are level.
  const Load load{2, 1, 2, {8, 0, 0, 8}};
  EXPECT_EQ(window_pars(rank_loads(Placement::linear(1, 2, 2), load)), (std::vector<double>{1.0}));
}

// Two layers, two ranks. Layer 0 is uneven in the first two steps of six; layer 1 is level, or has
// nothing.
RankLoads some_loads() {
  const std::vector<int32_t> first = {6, 1, 8, 0, 3, 2, 1, 2, 4, 5, 4, 5},
                             second = {2, 1, 0, 0, 1, 2, 3, 2, 4, 5, 4, 5};
  return recorded_rank_loads(6, 2, std::vector<std::span<const int32_t>>{first, second});
}

TEST(WindowPar, OfSomeStepsIsOfTheirSum) {
  const RankLoads loads = some_loads();
  EXPECT_EQ(summed_loads(loads, 0, {0, 2}), (std::vector<double>{14, 2}));
  EXPECT_DOUBLE_EQ(levelness(loads, 0, {0, 2}).par, 14.0 / 8);
  EXPECT_DOUBLE_EQ(window_par(loads, {0, 2}), (14.0 / 8 + 1) / 2);
  EXPECT_DOUBLE_EQ(window_par(loads, {2, 4}), 1);  // what one step lacks, the other has
  EXPECT_EQ(window_pars(loads)[0], window_pars(loads)[0]);
}

TEST(StepPar, OfEachStep) {
  EXPECT_EQ(step_pars(some_loads(), 0), (std::vector<double>{1.5, 2, 1.5, 1.5, 1, 1}));
  EXPECT_EQ(step_pars(some_loads(), 1), (std::vector<double>{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(step_pars(some_loads(), 0, {1, 3}), (std::vector<double>{2, 1.5}));
}

TEST(Levelness, HasMeanIntervalAndWorstOfTheSteps) {
  const RankLoads loads = some_loads();
  const Levelness all = levelness(loads, 0);
  EXPECT_DOUBLE_EQ(all.par, 26.0 / 20);
  EXPECT_DOUBLE_EQ(all.par_step_mean, 8.5 / 6);
  EXPECT_DOUBLE_EQ(all.par_step_worst, 2);
  EXPECT_EQ(all.worst_step, 1);
  EXPECT_DOUBLE_EQ(all.par_step_high, upper_95(step_pars(loads, 0)));
  const Levelness some = levelness(loads, 0, {2, 5});
  EXPECT_DOUBLE_EQ(some.par_step_mean, 4.0 / 3);
  EXPECT_EQ(some.worst_step, 2);
  const std::vector<Levelness> layers = {levelness(loads, 1), all};
  const Levelness mean = mean_over_layers(layers);
  EXPECT_DOUBLE_EQ(mean.par_step_mean, (1 + 8.5 / 6) / 2);
  EXPECT_DOUBLE_EQ(mean.par, (1 + 1.3) / 2);
  EXPECT_EQ(mean.worst_step, 1);
  EXPECT_EQ(mean.par_step_worst, 2);
}

TEST(Levelness, NothingIsLevel) {
  for (const int64_t steps : {0, 3}) {
    const Levelness level = levelness(RankLoads(steps, 1, 2), 0);
    EXPECT_EQ(level.par, 1.0);
    EXPECT_EQ(level.par_step_mean, 1.0);
    EXPECT_EQ(level.par_step_high, 1.0);
    EXPECT_EQ(level.par_step_worst, 1.0);
    EXPECT_EQ(noise_floor(RankLoads(steps, 1, 2), 0, {0, steps}), 1.0);
  }
}

// Student's t for three means: 4.303 standard errors.
TEST(Upper95, IsStudentsInterval) {
  EXPECT_NEAR(upper_95(std::vector<double>{1, 2, 3}), 2 + 4.303 / std::sqrt(3.0), 1e-12);
  EXPECT_EQ(upper_95(std::vector<double>{1.25}), 1.25);
  // 32 values in 16 pairs whose means are all 2: nothing is unsure.
  std::vector<double> pairs;
  for (int i = 0; i < 16; ++i) pairs.insert(pairs.end(), {1, 3});
  EXPECT_DOUBLE_EQ(upper_95(pairs), 2);
}

// Simulated with NumPy for the same numbers of ranks, 32768 assignments a step.
TEST(NoiseFloor, AgreesWithSimulation) {
  const Load load{1, 1, 1, {32768}};
  EXPECT_NEAR(noise_floor(load, 0, 16), 1.0392, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 32), 1.0653, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 64), 1.1051, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 1), 1.0, 1e-9);
}

// Of two counts with mean m, E[max] = m + E|difference| / 2 = m (1 + exp(-2m) (I0(2m) + I1(2m))),
// Bessel functions.
TEST(NoiseFloor, OfFewAndOfVeryManyTokens) {
  EXPECT_NEAR(noise_floor({1, 1, 1, {1}}, 0, 2),
              1 + std::exp(-1.0) * (1.2660658777520084 + 0.5651591039924851), 1e-12);
  EXPECT_NEAR(noise_floor({1, 1, 1, {int64_t{1} << 60}}, 0, 8), 1.0, 1e-8);
  const double below = noise_floor({1, 1, 1, {799'000'000}}, 0, 8),
               above = noise_floor({1, 1, 1, {801'000'000}}, 0, 8);
  EXPECT_NEAR(below, above, 1e-6);
  EXPECT_GT(below, above);
}

// The sum of P(max > k) over k, term by term, each from its logarithm.
double plain_noise_floor(double mean, int ranks) {
  const double reach = 14 * std::sqrt(mean);
  double expected = std::floor(mean - reach), below = 0;
  for (double k = expected; k < mean + reach; ++k) {
    below = std::min(1.0, below + std::exp(k * std::log(mean) - mean - std::lgamma(k + 1)));
    expected += 1 - std::pow(below, ranks);
  }
  return expected / mean;
}

// Where means are large the sum is not computed any more.
TEST(NoiseFloor, OfManyTokensIsWhatTheSumWouldBe) {
  for (const int ranks : {2, 8, 64}) {
    for (const double mean : {9e3, 1.1e4, 3e4, 1e5, 1e6}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, mean " << mean);
      const auto tokens = static_cast<int64_t>(mean * ranks);
      EXPECT_NEAR(noise_floor({1, 1, 1, {tokens}}, 0, ranks), plain_noise_floor(mean, ranks), 1e-6);
    }
  }
}

// Of 2000 steps each has another number of tokens. As sums they would take a minute.
TEST(NoiseFloor, OfManyTokensTakesNoTime) {
  Load load{2000, 1, 1, {}};
  for (int64_t step = 0; step < load.num_steps; ++step) load.counts.push_back(1'000'000'000 + step);
  const std::clock_t begin = std::clock();
  EXPECT_GT(noise_floor(load, 0, 8), 1.0);
  EXPECT_LT(std::clock() - begin, 2 * CLOCKS_PER_SEC);
}

TEST(NoiseFloor, IsTheSameForTheLoadsOfRanks) {
  const Load load{2, 1, 3, {30, 20, 10, 1, 0, 0}};
  // Thirds of tokens: their sums are rounded back to whole tokens.
  const RankLoads loads = rank_loads(Placement(1, 3, {2, 2, 1}, {0, 1, 0, 2, 0}), load);
  EXPECT_EQ(noise_floor(loads, 0, {0, 2}), noise_floor(load, 0, 3));
}

// A simulation of what chance does: it passes for level; the same tokens on a skewed placement do
// not.
TEST(AboveChance, TellsASkewFromChance) {
  std::mt19937 random(3);
  RankLoads chance(64, 2, 8);
  for (int64_t step = 0; step < 64; ++step) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int i = 0; i < 400; ++i) chance.at(step, layer)[random() % 8] += 1;
    }
  }
  chance.sum_up_window();
  const AboveChance none = above_chance(chance);
  EXPECT_NEAR(none.steps, 0, 0.02);
  EXPECT_NEAR(none.window, 0, 0.02);
  EXPECT_FALSE(is_worth_planning(none, 1.02));
  EXPECT_TRUE(is_worth_planning({.steps = 0.03, .window = 0}, 1.02));
  EXPECT_TRUE(is_worth_planning({.steps = 0, .window = 0.03}, 1.02));
  EXPECT_FALSE(is_worth_planning({.steps = 0.02, .window = 0.01}, 1.5));

  RankLoads skewed = chance;
  for (int64_t step = 0; step < 64; ++step) skewed.at(step, 0)[2] += 50;
  skewed.sum_up_window();
  EXPECT_GT(above_chance(skewed).window, 0.3);
  EXPECT_TRUE(is_worth_planning(above_chance(skewed), 1.02));
}

// Level windows by the thousand: next to none of them is above chance.
TEST(AboveChance, IsNothingInLevelWindows) {
  constexpr int kWindows = 2000, kLayers = 2;
  for (const int ranks : {2, 8}) {
    for (const int tokens : {24, 400}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << tokens << " tokens");
      std::mt19937 random(5);
      int planned = 0;
      for (int i = 0; i < kWindows; ++i) {
        RankLoads loads(4, kLayers, ranks);
        for (int step = 0; step < 4; ++step) {
          for (int layer = 0; layer < kLayers; ++layer) {
            for (int t = 0; t < tokens; ++t) loads.at(step, layer)[random() % cells(ranks)] += 1;
          }
        }
        loads.sum_up_window();
        planned += is_worth_planning(above_chance(loads), 1.001) ? 1 : 0;
      }
      EXPECT_LE(planned, kWindows / 200);
    }
  }
}

// A PAR is taken for chance up to 4 of the standard deviations that a simulation shows.
TEST(AboveChance, IsJudgedByHowFarChanceGoes) {
  constexpr int kRanks = 8;
  for (const int64_t mean : {int64_t{12}, int64_t{500}}) {
    std::mt19937 random(7);
    double sum = 0, squares = 0;
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
      std::vector<int64_t> loads(kRanks);
      for (int64_t t = 0; t < kRanks * mean; ++t) ++loads[random() % kRanks];
      const double value = par(loads);
      sum += value;
      squares += value * value;
    }
    const double chance = sum / kDraws, deviation = std::sqrt(squares / kDraws - chance * chance);
    const auto above = [&](double deviations) {
      RankLoads loads(1, 1, kRanks);
      const auto row = loads.at(0, 0);
      row[3] = (chance + deviations * deviation) * static_cast<double>(mean);
      for (int r = 0; r < kRanks; ++r) {
        if (r != 3) row[r] = (kRanks * static_cast<double>(mean) - row[3]) / (kRanks - 1);
      }
      loads.sum_up_window();
      return above_chance(loads).window;
    };
    EXPECT_EQ(above(3.5), 0) << mean;
    EXPECT_NEAR(above(4.5), 4.5 * deviation, 0.2 * deviation) << mean;
    EXPECT_LT(above(-0.5), 0) << mean;
  }
}

// Where means are large the deviation is not summed up any more, and goes on as it was.
TEST(AboveChance, OfManyTokensGoesOn) {
  const auto above = [](double mean, double par) {
    RankLoads loads(1, 1, 8);
    for (double& load : loads.at(0, 0)) load = mean * (8 - par) / 7;
    loads.at(0, 0)[0] = mean * par;
    loads.sum_up_window();
    return above_chance(loads).window;
  };
  const auto least = [&](double mean) {  // the least PAR that is above chance
    double low = 1, high = 2;
    while (high - low > 1e-9) {
      const double middle = (low + high) / 2;
      (above(mean, middle) > 0 ? high : low) = middle;
    }
    return high;
  };
  EXPECT_NEAR(least(9'990), least(10'010), 1e-4);
  EXPECT_NEAR((least(1e7) - 1) * std::sqrt(1e7), (least(9'990) - 1) * std::sqrt(9'990), 0.1);
}

}  // namespace
}  // namespace trimtab
