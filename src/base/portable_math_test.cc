// SPDX-License-Identifier: Apache-2.0
#include "base/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trimtab {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Exp, WithinOneUlpOverTheWholeRange) {
  double worst = 0.0;
  for (uint32_t bits = 0; bits < 0x7f800000U; bits += 9973) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      const double want = std::exp(static_cast<double>(x));
      const float got = exp_f32(x);
      if (want > static_cast<double>(std::numeric_limits<float>::max())) {
        EXPECT_EQ(got, kInf) << x;
        continue;
      }
      const float rounded = static_cast<float>(want);
      const double ulp =
          static_cast<double>(std::nextafter(rounded, kInf)) - static_cast<double>(rounded);
      worst = std::max(worst, std::fabs(static_cast<double>(got) - want) / ulp);
    }
  }
  EXPECT_LT(worst, 1.0);
}

TEST(Exp, ExactAndExtremePoints) {
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-0.0F), 1.0F);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_EQ(exp_f32(-kInf), 0.0F);
  EXPECT_EQ(exp_f32(88.8F), kInf);
  EXPECT_EQ(exp_f32(-104.0F), 0.0F);
  EXPECT_GT(exp_f32(-103.0F), 0.0F);  // subnormal, not flushed
}

TEST(CoarseExpAndLog, AreCloseToTheLibrarys) {
  for (float x = -80; x < 80; x += 0.37F) {
    EXPECT_NEAR(coarse_exp(x) / std::exp(static_cast<double>(x)), 1, 3e-6) << x;
    const float y = std::exp(x);
    EXPECT_NEAR(coarse_log(y), std::log(static_cast<double>(y)), 2e-5) << x;
  }
  EXPECT_GT(coarse_exp(-1000), 0);
  EXPECT_TRUE(std::isfinite(coarse_exp(1000)));
}

}  // namespace
}  // namespace trimtab
