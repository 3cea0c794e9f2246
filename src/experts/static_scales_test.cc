// SPDX-License-Identifier: Apache-2.0
// Rows that are rounded to 8 bits by one scale of the checkpoint, on every instruction set, against
// a reference that rounds by the definition and sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/cat.h"
#include "experts/test_formats.h"
#include "experts/test_grouped.h"
#include "experts/test_mlp.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

constexpr int64_t kStaticRows = 15, kStaticInputs = 264, kStaticOutputs = 96;
constexpr float kA1 = 0.0173F, kA2 = 0.031F;

const WeightFormat kStaticFormats[] = {
    Scheme::kW8A8, Scheme::kW4A8, {Scheme::kW4A8, 0}, Scheme::kFP8};

// To e4m3, to nearest, ties to the even code, at most 448: by trying all codes.
double nearest_e4m3(double x) {
  double best = 0, distance = std::abs(x);
  for (unsigned code = 1; code < 0x7f; ++code) {
    const double value = e4m3_value(code), off = std::abs(std::abs(x) - value);
    if (off < distance || (off == distance && code % 2 == 0)) best = value, distance = off;
  }
  return x < 0 ? -best : best;
}

double rounded_by(float x, float scale, WeightFormat format) {
  const float quotient = x / scale;
  if (format.scheme == Scheme::kFP8) return nearest_e4m3(static_cast<double>(quotient)) * scale;
  return std::clamp(std::nearbyint(static_cast<double>(quotient)), -128.0, 127.0) * scale;
}

class StaticScalesTest : public EachIsa {
 protected:
  static MlpSource with_scales(const TestMlp& mlp, float a1, float a2) {
    MlpSource source = mlp.source();
    source.a1_scale = a1;
    source.a2_scale = a2;
    return source;
  }
};

TRIMTAB_FOR_EACH_ISA(StaticScalesTest);

// M7: rows of static scales are rounded by them, once.
TEST_P(StaticScalesTest, RowsAreRoundedByTheScaleOfTheCheckpoint) {
  std::mt19937 random(1);
  const TestMlp weights(kStaticOutputs, kStaticInputs, DType::kBF16, Form::kDense, true, random);
  for (const WeightFormat format : kStaticFormats) {
    SCOPED_TRACE(name(format));
    const MlpSource source = with_scales(weights, kA1, kA2);
    const Mlp mlp(source, {}, format, kernels());
    TestRows act(kStaticRows, kStaticInputs, mlp.dtype(), 2),
        y(kStaticRows, kStaticOutputs, DType::kF32);
    act.randomise(random);
    act.set(2, 3, 1e4F);  // beyond the largest number, as is
    act.set(2, 4, -std::numeric_limits<float>::infinity());
    Team team(1);
    down(mlp, act.view(), y.view(), team);
    const Matrix stored = stored_weights(source.down, format);
    for (int64_t i = 0; i < kStaticRows; ++i) {
      for (int64_t j = 0; j < kStaticOutputs; ++j) {
        double want = static_cast<double>(source.down_bias.at(j)), magnitudes = std::abs(want);
        for (int64_t k = 0; k < kStaticInputs; ++k) {
          const double term = rounded_by(act.at(i, k), kA2, format) * stored.at(j, k);
          want += term;
          magnitudes += std::abs(term);
        }
        ASSERT_NEAR(static_cast<double>(y.at(i, j)), want, sum_bound(kStaticInputs + 8, magnitudes))
            << i << " " << j;
      }
    }
    for (const int64_t m : {1, 5}) {
      TestRows few(m, kStaticOutputs, DType::kF32);
      down(mlp, act.view().slice(3, m), few.view(), team);
      for (int64_t i = 0; i < m; ++i) ASSERT_EQ(few.row_bits(i), y.row_bits(3 + i));
    }
  }
}

// Gate and up meet rows that are rounded by a1_scale: those of f32 give what bf16 gives.
TEST_P(StaticScalesTest, GateAndUpUseTheirOwn) {
  std::mt19937 random(2);
  const TestMlp weights(kStaticInputs, kStaticOutputs, DType::kBF16, Form::kDense, false, random);
  for (const WeightFormat format : kStaticFormats) {
    SCOPED_TRACE(name(format));
    const MlpSource source = with_scales(weights, kA1, kA2);
    const Mlp mlp(source, {}, format, kernels());
    TestRows x(kStaticRows, kStaticInputs, DType::kBF16),
        same(kStaticRows, kStaticInputs, DType::kF32),
        grid(kStaticRows, kStaticInputs, DType::kF32);
    x.randomise(random);
    for (int64_t i = 0; i < kStaticRows; ++i) {
      for (int64_t j = 0; j < kStaticInputs; ++j) {
        same.set(i, j, x.at(i, j));
        grid.set(i, j, static_cast<float>(rounded_by(x.at(i, j), kA1, format)));
      }
    }
    Team team(1);
    TestRows want(kStaticRows, kStaticOutputs, DType::kBF16),
        got(kStaticRows, kStaticOutputs, DType::kBF16);
    gate_up(mlp, x.view(), want.view(), team);
    for (const TestRows* rows : {&same, &grid}) {  // numbers that are rounded already stay
      gate_up(mlp, rows->view(), got.view(), team);
      for (int64_t i = 0; i < kStaticRows; ++i) ASSERT_EQ(got.row_bits(i), want.row_bits(i)) << i;
    }
    const Mlp own(weights.source(), {}, format, kernels());
    gate_up(own, x.view(), got.view(), team);
    EXPECT_NE(got.row_bits(0), want.row_bits(0));
  }
}

TEST_P(StaticScalesTest, NaNStaysInItsRow) {
  std::mt19937 random(3);
  const TestMlp weights(kStaticOutputs, kStaticInputs, DType::kBF16, Form::kDense, false, random);
  for (const WeightFormat format : kStaticFormats) {
    const Mlp mlp(with_scales(weights, kA1, kA2), {}, format, kernels());
    TestRows act(kStaticRows, kStaticInputs, DType::kBF16),
        y(kStaticRows, kStaticOutputs, DType::kF32);
    act.randomise(random);
    act.set(4, 100, std::numeric_limits<float>::quiet_NaN());
    Team team(1);
    down(mlp, act.view(), y.view(), team);
    for (int64_t i = 0; i < kStaticRows; ++i) {
      for (int64_t j = 0; j < kStaticOutputs; ++j)
        ASSERT_EQ(std::isnan(y.at(i, j)), i == 4) << name(format) << " " << i << " " << j;
    }
  }
}

// Experts have scales of their own. Rows in 8 bits would have been rounded otherwise.
TEST_P(StaticScalesTest, GroupedExpertsKeepTheirScalesApart) {
  std::mt19937 random(4);
  const TestMlp weights(kStaticInputs, kStaticOutputs, DType::kBF16, Form::kDense, false, random);
  for (const WeightFormat format : kStaticFormats) {
    SCOPED_TRACE(name(format));
    Table table;
    for (const float a1 : {kA1, 3 * kA1}) {
      table.push_back(std::make_shared<const Mlp>(with_scales(weights, a1, a1), Activation{},
                                                  format, kernels()));
    }
    const auto experts = make_grouped_experts(table, kStaticInputs, format);
    EXPECT_TRUE(experts->accepts(DType::kBF16));
    EXPECT_FALSE(experts->accepts(DType::kI8) || experts->accepts(DType::kF8E4M3));
    const std::vector<int32_t> counts = {9, 6};
    const TestRows x = random_rows(kStaticRows, DType::kBF16, kStaticInputs);
    const TestRows out = run(*experts, x, counts, 2);
    expect_same_as_mlps(table, x.view(), counts, out,
                        [](size_t s) { return s == 0 ? int64_t{0} : int64_t{9}; });
    table.push_back(std::make_shared<const Mlp>(weights.source(), Activation{}, format, kernels()));
    EXPECT_THROW(make_grouped_experts(table, kStaticInputs, format), InvalidArgument);
  }
}

TEST(StaticScales, OtherFormatsDoWithoutAndBadOnesAreRefused) {
  std::mt19937 random(5);
  const TestMlp weights(64, 48, DType::kBF16, Form::kDense, false, random);
  MlpSource source = weights.source();
  for (const WeightFormat format : kFormats) {
    source.a1_scale = source.a2_scale = 0.5F;
    const Mlp mlp(source, {}, format);
    EXPECT_EQ(mlp.down_packed().row_scale.bytes() > 0, uses_row_scale(format)) << name(format);
    if (!uses_row_scale(format)) continue;
    for (const float bad :
         {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      source.a2_scale = bad;
      EXPECT_THROW(Mlp(source, {}, format), InvalidArgument) << bad;
    }
  }
}

}  // namespace
}  // namespace trimtab::test
