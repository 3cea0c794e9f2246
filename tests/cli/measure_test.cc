// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/measure.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trimtab/error.h"

namespace trimtab::cli {
namespace {

// Two steps, one layer, four experts.
const Load kLoad{2, 1, 4, {6, 2, 0, 0, 0, 2, 4, 2}};

TEST(Measure, SharesAnExpertsTokensAmongItsCopies) {
  const Placement placement(1, 4, {2, 3}, {0, 1, 0, 2, 3});
  // Summed: 6, 4, 4, 2 -> ranks 3 + 4 and 3 + 4 + 2; steps: 5 and 3, then 2 and 6.
  const LayerLevel level = measure(placement, kLoad, 0);
  EXPECT_DOUBLE_EQ(level.par, 9.0 / 8);
  EXPECT_DOUBLE_EQ(level.par_step_mean, (5.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(level.par_step_worst, 6.0 / 4);
  EXPECT_EQ(level.worst_step, 1);
}

// Expert 0 on both ranks. Steps: 6, 2, 0, 0 and 0, 2, 4, 2.
TEST(MeasureSplit, SharesOutWholeTokensByTheRule) {
  const Placement placement(1, 4, {2, 3}, {0, 1, 0, 2, 3});
  // Of the first step's 8 tokens rank 0 gets two of expert 1, and two or, in turns, three of expert
  // 0.
  const LayerLevel split = measure_split(placement, kLoad, 0, SplitRule::kSplit, {});
  EXPECT_DOUBLE_EQ(split.par_step_mean, (4.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(split.par, 10.0 / 8);
  EXPECT_EQ(split.worst_step, 1);
  const LayerLevel turns = measure_split(placement, kLoad, 0, SplitRule::kRoundRobin, {});
  EXPECT_DOUBLE_EQ(turns.par_step_mean, (5.0 / 4 + 6.0 / 4) / 2);
  EXPECT_DOUBLE_EQ(turns.par, 9.0 / 8);
}

TEST(MeasureSplit, StaticDependsOnWhoSends) {
  // Two of three tokens come from rank 0, and a rank uses its own copy.
  const LayerLevel level =
      measure_split(Placement(1, 1, {1, 1}, {0, 0}), {1, 1, 1, {3}}, 0, SplitRule::kStatic, {});
  EXPECT_DOUBLE_EQ(level.par, 2 / 1.5);
  // Odd tokens go on with the next rank: expert 1's only one comes from rank 1.
  const Placement both(1, 2, {2, 2}, {0, 1, 0, 1});
  EXPECT_DOUBLE_EQ(measure_split(both, {1, 1, 2, {3, 1}}, 0, SplitRule::kStatic, {}).par, 1.0);
}

TEST(MeasureSplit, RefusesStepsThatAreNoBatch) {
  const Load load{1, 1, 2, {int64_t{1} << 40, 1}};
  EXPECT_THROW(measure_split(Placement::linear(1, 2, 2), load, 0, SplitRule::kSplit, {}),
               InvalidArgument);
}

TEST(Measure, NoTokensAreLevel) {
  const LayerLevel level = measure(Placement::linear(1, 2, 2), {3, 1, 2, {0, 0, 0, 0, 0, 0}}, 0);
  EXPECT_EQ(level.par, 1.0);
  EXPECT_EQ(level.par_step_mean, 1.0);
  EXPECT_EQ(level.par_step_worst, 1.0);
  EXPECT_EQ(noise_floor({1, 1, 2, {0, 0}}, 0, 2), 1.0);
}

TEST(Measure, DriftIsThePartThatWentElsewhere) {
  const Drift one = drift(kLoad, 0, 1);
  EXPECT_DOUBLE_EQ(one.mean, 0.75);  // shares .75 .25 0 0 -> 0 .25 .5 .25
  EXPECT_DOUBLE_EQ(one.worst, 0.75);
  const Drift three = drift({5, 1, 2, {4, 0, 2, 2, 2, 2, 4, 0, 9, 9}}, 0,
                            2);  // .75 .25 -> .75 .25, the fifth left out
  EXPECT_DOUBLE_EQ(three.mean, 0);
}

// Simulated with NumPy for the same numbers of ranks, 32768 assignments a step.
TEST(Measure, NoiseFloorAgreesWithSimulation) {
  const Load load{1, 1, 1, {32768}};
  EXPECT_NEAR(noise_floor(load, 0, 16), 1.0392, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 32), 1.0653, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 64), 1.1051, 5e-4);
  EXPECT_NEAR(noise_floor(load, 0, 1), 1.0, 1e-9);
}

// Of two counts with mean m, E[max] = m + E|difference| / 2 = m (1 + exp(-2m) (I0(2m) + I1(2m))),
// Bessel functions.
TEST(Measure, NoiseFloorOfFewAndOfVeryManyTokens) {
  EXPECT_NEAR(noise_floor({1, 1, 1, {1}}, 0, 2),
              1 + std::exp(-1.0) * (1.2660658777520084 + 0.5651591039924851), 1e-12);
  EXPECT_NEAR(noise_floor({1, 1, 1, {int64_t{1} << 60}}, 0, 8), 1.0, 1e-8);
  const double below = noise_floor({1, 1, 1, {799'000'000}}, 0, 8),
               above = noise_floor({1, 1, 1, {801'000'000}}, 0, 8);
  EXPECT_NEAR(below, above, 1e-6);
  EXPECT_GT(below, above);
}

}  // namespace
}  // namespace trimtab::cli
