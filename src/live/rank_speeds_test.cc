// SPDX-License-Identifier: Apache-2.0
#include "live/rank_speeds.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

using Speeds = std::optional<std::vector<int32_t>>;

// Ranks that take this many times as long as the cost model says.
std::vector<RankTime> window_of(std::initializer_list<double> slowness) {
  std::vector<RankTime> window;
  for (const double s : slowness)
    window.push_back({.nominal = 1'000'000, .measured = static_cast<int64_t>(1'000'000 * s)});
  return window;
}

TEST(RankSpeeds, TwoWindowsMustAgreeThatARankIsSlow) {
  RankSpeeds speeds(3);
  EXPECT_EQ(speeds.take(window_of({1, 2, 1})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 2, 1})), Speeds({1000, 500, 1000}));
  // It goes on like that: nothing new.
  EXPECT_EQ(speeds.take(window_of({1, 2.05, 1})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 1.95, 1})), std::nullopt);
  // And ends. One window alone says nothing.
  EXPECT_EQ(speeds.take(window_of({1, 1, 1})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 2, 1})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 1, 1.03})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1.02, 1, 1})), Speeds({1000, 1000, 1000}));
}

TEST(RankSpeeds, WhatAllRanksHaveInCommonDoesNotCount) {
  RankSpeeds speeds(2);
  // A model that is wrong by a factor, and noise.
  EXPECT_EQ(speeds.take(window_of({3, 3.2})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({3.2, 3})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({0.25, 0.5})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({0.5, 1})), Speeds({1000, 500}));
}

TEST(RankSpeeds, WindowsThatDisagreeChangeNothing) {
  RankSpeeds speeds(2);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(speeds.take(window_of({1, 1.5})), std::nullopt);
    EXPECT_EQ(speeds.take(window_of({1.5, 1})), std::nullopt);
  }
}

TEST(RankSpeeds, ARankWithoutTimesLeavesAllOpen) {
  RankSpeeds speeds(2);
  EXPECT_EQ(speeds.take(window_of({1, 2})), std::nullopt);
  EXPECT_EQ(speeds.take(std::vector<RankTime>{{1000, 0}, {1000, 1000}}), std::nullopt);
  EXPECT_EQ(speeds.take(std::vector<RankTime>{{0, 10}, {1000, 1000}}), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 2})), Speeds({1000, 500}));
}

TEST(RankSpeeds, NoSpeedIsZero) {
  RankSpeeds speeds(2);
  EXPECT_EQ(speeds.take(window_of({1, 1e6})), std::nullopt);
  EXPECT_EQ(speeds.take(window_of({1, 1e6})), Speeds({1000, 1}));
}

}  // namespace
}  // namespace trimtab
