// SPDX-License-Identifier: Apache-2.0
#include "router/scoring.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace trimtab {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> scores(Scoring scoring, const std::vector<float>& logits) {
  std::vector<float> out(logits.size(), -99.0F);
  score(scoring, logits, out.data());
  return out;
}

// R2: scores by softmax, sigmoid or sqrt(softplus); any other name in a config is refused.
TEST(Softmax, AgreesWithDoubles) {
  const std::vector<float> x = {0.5F, -2.0F, 3.25F, 3.0F, -40.0F};
  double sum = 0.0;
  for (const float v : x) sum += std::exp(static_cast<double>(v));
  const std::vector<float> got = scores(Scoring::kSoftmax, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i])) / sum;
    EXPECT_NEAR(got[i], want, 5e-7 * want) << i;
  }
}

TEST(Softmax, LargeLogitsDoNotOverflow) {
  const std::vector<float> small = scores(Scoring::kSoftmax, {0.0F, 1.0F, 2.0F});
  EXPECT_EQ(scores(Scoring::kSoftmax, {1024.0F, 1025.0F, 1026.0F}), small);
  EXPECT_EQ(scores(Scoring::kSoftmax, {-1026.0F, -1025.0F, -1024.0F}), small);
  EXPECT_EQ(scores(Scoring::kSoftmax, {3e38F, -3e38F}), (std::vector<float>{1.0F, 0.0F}));
}

TEST(Softmax, ThousandsOfEqualLogitsAreExact) {
  const std::vector<float> got = scores(Scoring::kSoftmax, std::vector<float>(2048, 7.0F));
  for (const float w : got) EXPECT_EQ(w, 1.0F / 2048.0F);
}

TEST(Softmax, InfinitiesAreTheLimits) {
  EXPECT_EQ(scores(Scoring::kSoftmax, {kInf, 5.0F, kInf, -kInf}),
            (std::vector<float>{0.5F, 0.0F, 0.5F, 0.0F}));
  EXPECT_EQ(scores(Scoring::kSoftmax, {-kInf, 5.0F, 5.0F, -kInf}),
            (std::vector<float>{0.0F, 0.5F, 0.5F, 0.0F}));
  EXPECT_EQ(scores(Scoring::kSoftmax, std::vector<float>(4, -kInf)), std::vector<float>(4, 0.25F));
}

TEST(Sigmoid, ValuesAndLimits) {
  const std::vector<float> got =
      scores(Scoring::kSigmoid, {0.0F, 2.0F, -2.0F, kInf, -kInf, 200.0F, -200.0F});
  EXPECT_EQ(got[0], 0.5F);
  EXPECT_NEAR(got[1], 0.88079707797788, 1e-7);
  EXPECT_NEAR(got[2], 0.11920292202212, 1e-8);
  EXPECT_EQ(got[3], 1.0F);
  EXPECT_EQ(got[4], 0.0F);
  EXPECT_EQ(got[5], 1.0F);
  EXPECT_EQ(got[6], 0.0F);
}

TEST(SqrtSoftplus, ValuesAndLimits) {
  const std::vector<float> got =
      scores(Scoring::kSqrtSoftplus, {0.0F, 2.0F, -2.0F, 100.0F, -60.0F, kInf, -kInf, -30.0F});
  EXPECT_NEAR(got[0], 0.83255461115770, 1e-7);  // sqrt(ln 2)
  EXPECT_NEAR(got[1], 1.45839912611556, 2e-7);
  EXPECT_NEAR(got[2], 0.35626957636455, 5e-8);
  EXPECT_EQ(got[3], 10.0F);
  EXPECT_NEAR(got[4], 9.3576229688402e-14, 1e-19);
  EXPECT_EQ(got[5], std::sqrt(std::numeric_limits<float>::max()));
  EXPECT_EQ(got[6], 0.0F);
  EXPECT_NEAR(got[7], 3.0590232050182e-07, 1e-13);
}

}  // namespace
}  // namespace trimtab
