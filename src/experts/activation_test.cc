// SPDX-License-Identifier: Apache-2.0
// Activations alone: with hidden = 1 and x = 1 the weights are the gate and up values themselves,
// exactly.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "experts/test_mlp.h"
#include "trimtab/experts.h"

namespace trimtab::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr ActivationKind kKinds[] = {ActivationKind::kSilu, ActivationKind::kGelu,
                                     ActivationKind::kGeluTanh, ActivationKind::kSwigluClamp,
                                     ActivationKind::kSwigluStep};
// DeepSeek-V4's: a silu of clamped numbers.
constexpr Activation kLimitedSilu = {
    .kind = ActivationKind::kSwigluClamp, .alpha = 1.0F, .limit = 10.0F, .beta = 0.0F};

// x * sigmoid(s) for finite x, without overflow.
double times_sigmoid(double x, double s) {
  return s >= 0 ? x / (1 + std::exp(-s)) : x * std::exp(s) / (1 + std::exp(s));
}

double gelu_tanh_argument(double x) {
  return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
}

double reference(Activation a, double gate, double up) {
  switch (a.kind) {
    case ActivationKind::kSilu:
      return times_sigmoid(gate, gate) * up;
    case ActivationKind::kGelu:
      return 0.5 * gate * std::erfc(-gate / std::sqrt(2.0)) * up;
    case ActivationKind::kGeluTanh:
      return times_sigmoid(gate, gelu_tanh_argument(gate)) * up;
    case ActivationKind::kSwigluClamp:
    case ActivationKind::kSwigluStep:
      break;
  }
  const double limit = static_cast<double>(a.limit);
  const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit);
  if (a.kind == ActivationKind::kSwigluStep) return std::min(times_sigmoid(gate, gate), limit) * u;
  return (u + static_cast<double>(a.beta)) * times_sigmoid(g, static_cast<double>(a.alpha) * g);
}

// A handful of roundings of the result; those of the sigmoid's argument s move it by up to |s|
// times their size. Below 1e-35 results may be 0.
double bound(Activation a, double gate, double up, double result) {
  double s = 0;
  if (a.kind == ActivationKind::kGeluTanh) s = std::abs(gelu_tanh_argument(gate));
  if (a.kind == ActivationKind::kSwigluClamp) s = std::abs(static_cast<double>(a.alpha) * gate);
  return (8 + 6 * std::min(s, 100.0)) * kUnit * std::abs(result) +
         1e-35 * std::max(1.0, std::abs(up));
}

class ActivationTest : public EachIsa {
 protected:
  // act of one row, as stored.
  TestRows run(Activation activation, const std::vector<float>& gate, const std::vector<float>& up,
               DType dtype, int64_t m = 1) const {
    const int64_t n = std::ssize(gate);
    const auto column = [&](const std::vector<float>& values) {
      return MatrixSource{
          reinterpret_cast<const std::byte*>(values.data()), DType::kF32, n, 1, 1, 1};
    };
    const std::vector<float> zeros(gate.size());
    MatrixSource down = column(zeros);
    std::swap(down.rows, down.cols);
    const Mlp mlp({column(gate), column(up), down, {}, {}, {}}, activation, dtype, kernels());
    TestRows x(m, 1, DType::kF32), act(m, n, dtype);
    for (int64_t i = 0; i < m; ++i) x.set(i, 0, 1.0F);
    Team team(1);
    gate_up(mlp, x.view(), act.view(), team);
    return act;
  }
  float run(Activation activation, float gate, float up) const {
    return run(activation, {gate}, {up}, DType::kF32).at(0, 0);
  }
};

TRIMTAB_FOR_EACH_ISA(ActivationTest);

std::vector<float> all_magnitudes() {
  std::vector<float> values = {0.0F, -0.0F};
  for (int exponent = -149; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0F, 1.1F, 1.37F, 1.618F, 1.9999F}) {
      values.push_back(std::ldexp(mantissa, exponent));
      values.push_back(-values.back());
    }
  }
  for (float x = -110.0F; x <= 110.0F; x += 0.0937F) values.push_back(x);
  return values;
}

// M2: activations: silu, gelu, gelu_tanh, gpt-oss's clamped one (alpha, beta, limit; interleaved
//     weights or not), swiglustep, a silu with limits (the clamped one with alpha 1, beta 0);
//     others refused.
TEST_P(ActivationTest, MatchesDoubleOverAllMagnitudes) {
  const std::vector<float> gate = all_magnitudes();
  std::vector<Activation> activations = {kLimitedSilu};
  for (const ActivationKind kind : kKinds) activations.push_back({.kind = kind});
  for (const Activation& activation : activations) {
    for (const float u : {1.0F, -2.7F, 9.0F}) {
      const std::vector<float> up(gate.size(), u);
      const TestRows act = run(activation, gate, up, DType::kF32);
      for (size_t i = 0; i < gate.size(); ++i) {
        const auto g = static_cast<double>(gate[i]), uu = static_cast<double>(u);
        const double want = reference(activation, g, uu);
        const float got = act.at(0, static_cast<int64_t>(i));
        if (std::abs(want) > static_cast<double>(kMax)) {
          EXPECT_EQ(got, want > 0 ? kInf : -kInf);
          continue;
        }
        ASSERT_NEAR(got, want, bound(activation, g, uu, want))
            << "kind " << static_cast<int>(activation.kind) << " at " << gate[i];
      }
    }
  }
}

TEST_P(ActivationTest, InfinitiesGiveTheLimits) {
  for (const ActivationKind kind :
       {ActivationKind::kSilu, ActivationKind::kGelu, ActivationKind::kGeluTanh}) {
    const Activation activation = {.kind = kind};
    EXPECT_EQ(run(activation, kInf, 1.0F), kInf);
    EXPECT_EQ(run(activation, kMax, 1.0F), kMax);
    EXPECT_EQ(run(activation, -kMax, 1.0F), 0.0F);
    EXPECT_EQ(run(activation, -kInf, 1.0F), 0.0F);
    EXPECT_EQ(run(activation, -kInf, -3.0F), 0.0F);
  }
}

TEST_P(ActivationTest, TheClampHoldsOnAllSides) {
  const Activation activation = {
      .kind = ActivationKind::kSwigluClamp, .alpha = 1.702F, .limit = 7.0F};
  const float top = run(activation, 7.0F, 7.0F);
  EXPECT_NEAR(top, reference(activation, 7, 7), 1e-5);
  for (const float gate : {7.5F, 1e6F, kMax, kInf}) {
    for (const float up : {7.5F, 1e6F, kMax, kInf}) EXPECT_EQ(run(activation, gate, up), top);
  }
  for (const float up : {-7.5F, -kMax, -kInf})
    EXPECT_EQ(run(activation, 2.0F, up), run(activation, 2.0F, -7.0F));
  // The gate has no lower clamp: it goes to zero.
  EXPECT_NEAR(run(activation, -9.0F, 1.0F), reference(activation, -9, 1), 1e-11);
  EXPECT_EQ(run(activation, -kInf, 1.0F), 0.0F);
  const Activation other = {.kind = ActivationKind::kSwigluClamp, .alpha = 0.5F, .limit = 2.0F};
  EXPECT_NEAR(run(other, 3.0F, -5.0F), reference(other, 3, -5), 1e-6);
}

TEST_P(ActivationTest, BetaIsAddedToTheClampedUp) {
  const Activation activation = {
      .kind = ActivationKind::kSwigluClamp, .alpha = 1.3F, .limit = 3.0F, .beta = -0.75F};
  for (const float up : {-9.0F, -3.0F, 0.0F, 0.75F, 2.0F, 9.0F}) {
    EXPECT_NEAR(run(activation, 1.5F, up), reference(activation, 1.5, static_cast<double>(up)),
                1e-6)
        << up;
  }
}

TEST_P(ActivationTest, ALimitedSiluIsASiluWithinItsLimits) {
  for (const float gate : {-20.0F, -1.0F, 0.3F, 9.9F}) {
    for (const float up : {-9.9F, -0.1F, 4.0F}) {
      EXPECT_EQ(run(kLimitedSilu, gate, up), run({.kind = ActivationKind::kSilu}, gate, up));
    }
  }
  for (const float gate : {10.0F, 11.0F, kInf})
    EXPECT_EQ(run(kLimitedSilu, gate, 50.0F), run(kLimitedSilu, 10.0F, 10.0F));
}

TEST_P(ActivationTest, SwigluStepLimitsTheResultOfSilu) {
  const Activation step = {.kind = ActivationKind::kSwigluStep, .limit = 2.0F};
  // silu(2.1) < 2 < silu(2.3): the gate itself may be beyond the limit.
  EXPECT_EQ(run(step, 2.1F, 1.5F), run({.kind = ActivationKind::kSilu}, 2.1F, 1.5F));
  for (const float gate : {2.3F, 100.0F, kInf}) {
    EXPECT_EQ(run(step, gate, 1.5F), 3.0F);
    for (const float up : {-2.5F, -kInf}) EXPECT_EQ(run(step, gate, up), -4.0F);
    for (const float up : {2.5F, kInf}) EXPECT_EQ(run(step, gate, up), 4.0F);
  }
  EXPECT_EQ(run(step, -kInf, 1.0F), 0.0F);
}

TEST_P(ActivationTest, NanStaysNan) {
  for (const ActivationKind kind : kKinds) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TestRows act =
          run({.kind = kind}, {kNan, 1.0F, kNan, 1.0F}, {1.0F, kNan, kNan, 1.0F}, dtype);
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_TRUE(std::isnan(act.at(0, i))) << static_cast<int>(kind) << " " << i;
      EXPECT_FALSE(std::isnan(act.at(0, 3)));
    }
  }
}

TEST_P(ActivationTest, AValueHasTheSameBitsInEveryLaneAndRow) {
  for (const ActivationKind kind : kKinds) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const float gate : {-3.3F, 0.71F, 5.9F}) {
        const TestRows act = run({.kind = kind}, std::vector<float>(71, gate),
                                 std::vector<float>(71, 1.3F), dtype, 13);
        const std::string first = act.row_bits(0);
        const size_t size = first.size() / 71;
        for (int64_t i = 0; i < 13; ++i) {
          const std::string row = act.row_bits(i);
          for (size_t c = 0; c < 71; ++c)
            ASSERT_EQ(row.substr(c * size, size), first.substr(0, size)) << i << " " << c;
        }
      }
    }
  }
}

TEST_P(ActivationTest, BF16IsTheF32ResultRoundedToNearestEven) {
  std::vector<float> gate = all_magnitudes();
  for (float& g : gate) g = to_float(to_bf16(g));
  for (const ActivationKind kind : kKinds) {
    const std::vector<float> up(gate.size(), 1.0F);
    const TestRows exact = run({.kind = kind}, gate, up, DType::kF32);
    const TestRows rounded = run({.kind = kind}, gate, up, DType::kBF16);
    for (int64_t i = 0; i < std::ssize(gate); ++i) {
      ASSERT_EQ(rounded.at(0, i), to_float(to_bf16(exact.at(0, i)))) << gate[i];
    }
  }
}

}  // namespace
}  // namespace trimtab::test
