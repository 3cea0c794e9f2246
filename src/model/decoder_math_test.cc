// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace trimtab {
namespace {

std::vector<float> random_values(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(RmsNorm, GivesUnitMeanSquareTimesTheWeight) {
  const auto x = random_values(37, 4);
  const auto weight = random_values(37, 5);
  double square = 0.0;
  for (const float value : x) square += double{value} * double{value};
  const double rms = std::sqrt(square / 37 + 0.5);
  std::vector<float> out = x;
  rms_norm(out.data(), weight, 0.5F, out.data());
  for (size_t i = 0; i < 37; ++i) EXPECT_NEAR(out[i], double{x[i]} / rms * double{weight[i]}, 1e-6);
}

TEST(Rotate, TurnsPairsHalfARowApart) {
  std::vector<float> x = {1.0F, 0.0F, 0.0F, 2.0F};
  const std::vector<float> sine = {1.0F, 0.0F},
                           cosine = {0.0F, -1.0F};  // a quarter and a half turn
  rotate(x.data(), sine, cosine);
  EXPECT_EQ(x, (std::vector<float>{0.0F, 0.0F, 1.0F, -2.0F}));
}

}  // namespace
}  // namespace trimtab
