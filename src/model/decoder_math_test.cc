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

std::vector<double> plain_attention(const std::vector<float>& q, const std::vector<float>& keys,
                                    const std::vector<float>& values, size_t first, size_t last,
                                    double scale) {
  const size_t dim = q.size();
  std::vector<double> out(dim);
  double sum = 0.0;
  for (size_t p = first; p < last; ++p) {
    double score = 0.0;
    for (size_t d = 0; d < dim; ++d) score += double{q[d]} * double{keys[p * dim + d]};
    const double weight = std::exp(scale * score);
    sum += weight;
    for (size_t d = 0; d < dim; ++d) out[d] += weight * double{values[p * dim + d]};
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST(Attend, EqualsAPlainSoftmax) {
  for (const size_t dim : {2U, 6U, 16U, 24U}) {
    const auto q = random_values(dim, 1), keys = random_values(300 * dim, 2),
               values = random_values(300 * dim, 3);
    for (const auto& [first, last] :
         std::vector<std::pair<size_t, size_t>>{{0, 1}, {0, 64}, {0, 65}, {5, 270}}) {
      std::vector<float> out(dim, NAN);
      attend(q.data(), keys.data(), values.data(), static_cast<int64_t>(first),
             static_cast<int64_t>(last), static_cast<int64_t>(dim), 0.7F, out.data());
      const auto expected = plain_attention(q, keys, values, first, last, 0.7);
      for (size_t d = 0; d < dim; ++d)
        EXPECT_NEAR(out[d], expected[d], 1e-5) << dim << " " << first << " " << last;
    }
  }
}

TEST(Attend, LargeScoresDoNotOverflow) {
  const std::vector<float> q = {100.0F, 0.0F}, keys = {-100.0F, 0.0F, 100.0F, 0.0F},
                           values = {1.0F, 2.0F, 3.0F, 4.0F};
  std::vector<float> out(2);
  attend(q.data(), keys.data(), values.data(), 0, 2, 2, 1.0F, out.data());
  EXPECT_EQ(out, (std::vector<float>{3.0F, 4.0F}));
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
