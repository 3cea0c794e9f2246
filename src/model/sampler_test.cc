// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Sampler, TiesGoToTheLowerId) {
  EXPECT_EQ(most_likely(std::vector{0.5F, 2.0F, -1.0F, 2.0F}), 1);
  EXPECT_EQ(most_likely(std::vector{kNan, -3.0F, kNan}), 1);
  EXPECT_THROW(most_likely(std::vector{kNan, -kInfinity}), InvalidArgument);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, -kInfinity, 2.0F, kNan};
  const double temperature = 0.8;
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (uint64_t i = 0; i < kDraws; ++i) ++counts[sample(logits, 0.8F, 3, i / 200, i % 200)];
  const double total = 1.0 + std::exp(1 / temperature) + std::exp(2 / temperature);
  for (const size_t id : {0U, 1U, 3U}) {
    const double p = std::exp(double{logits[id]} / temperature) / total;
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(counts[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << id;
  }
  EXPECT_EQ(counts[2] + counts[4], 0);
}

TEST(Sampler, ALowTemperatureIsGreedy) {
  const std::vector<float> logits = {0.0F, 1.0F, 1.5F, 1.25F};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(sample(logits, 1e-3F, 1, 2, i), 2);
}

}  // namespace
}  // namespace trimtab
