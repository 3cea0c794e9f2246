// SPDX-License-Identifier: Apache-2.0
// Integer weights with rows of bf16, at the sizes of real experts: products on every instruction
// set against sums in double over (code - zero point) x scale, which the test computes from the
// checkpoint's bytes by itself.
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "experts/test_mlp.h"
#include "experts/test_quantised.h"

namespace trimtab::test {
namespace {

// Both have a last group that is cut off, unless a group has all inputs.
constexpr int64_t kExpertHidden = 2056, kExpertWidth = 264;
constexpr int64_t kManyRows = 67;    // more than the tiles that decode weights in registers
constexpr int64_t kEveryOutput = 5;  // the outputs that are compared

class WeightOnlyTest : public EachIsa {
 protected:
  struct Expert {
    Expert(const SameQuantization& kind, std::mt19937& random)
        : gate(kind.matrix(kExpertWidth, kExpertHidden, random)),
          up(kind.matrix(kExpertWidth, kExpertHidden, random)),
          down(kind.matrix(kExpertHidden, kExpertWidth, random)) {
      // Sums of thousands of such weights are far beyond where silu bends.
      for (float& value : gate.values) value *= 0x1p-9F;
      for (Quantised* matrix : {&gate, &up, &down}) matrix->store_scales();
    }
    MlpSource source() const { return {gate.source, up.source, down.source, {}, {}, {}}; }
    Quantised gate, up, down;
  };
  struct Sum {
    double value, bound;
  };
  // One accumulation for each input, and a scaling and an addition for each group.
  static Sum product(const Quantised& weights, int64_t output, const TestRows& x, int64_t row) {
    const int64_t cols = weights.source.cols;
    double sum = 0, magnitudes = 0;
    for (int64_t k = 0; k < cols; ++k) {
      const double term = weights.want(output, k) * static_cast<double>(x.at(row, k));
      sum += term;
      magnitudes += std::abs(term);
    }
    return {sum, sum_bound(cols + 2 * weights.blocks_across, magnitudes)};
  }

  void check(const SameQuantization& kind) const {
    SCOPED_TRACE(kind.text());
    std::mt19937 random(11);
    const Expert expert(kind, random);
    const Mlp mlp(expert.source(), {}, kind.format, kernels());
    ASSERT_EQ(mlp.dtype(), DType::kBF16);
    TestRows x(kManyRows, kExpertHidden, DType::kBF16, 2),
        act(kManyRows, kExpertWidth, DType::kBF16, 6), y(kManyRows, kExpertHidden, DType::kF32);
    x.randomise(random);
    Team team(1);
    gate_up(mlp, x.view(), act.view(), team);
    for (int64_t i = 0; i < kManyRows; i += 11) {
      for (int64_t j = 0; j < kExpertWidth; j += kEveryOutput) {
        const auto [g, dg] = product(expert.gate, j, x, i);
        const auto [u, du] = product(expert.up, j, x, i);
        const double want = g / (1 + std::exp(-g)) * u;
        const double inner =
            1.1 * dg * (std::abs(u) + du) + std::abs(g) * du + 8 * kUnit * std::abs(want);
        ASSERT_NEAR(static_cast<double>(act.at(i, j)), want,
                    inner + kUnitBF16 * (std::abs(want) + inner) + 0x1p-126)
            << i << " " << j;
      }
    }
    down(mlp, act.view(), y.view(), team);
    for (int64_t i = 0; i < kManyRows; i += 11) {
      for (int64_t j = 0; j < kExpertHidden; j += kEveryOutput) {
        const auto [want, bound] = product(expert.down, j, act, i);
        ASSERT_NEAR(static_cast<double>(y.at(i, j)), want, bound + 0x1p-126) << i << " " << j;
      }
    }
    // Few rows, whose weights are decoded on their way to the registers.
    for (const int64_t m : {1, 4, 7}) {
      TestRows few(m, kExpertHidden, DType::kF32);
      down(mlp, act.view().slice(0, m), few.view(), team);
      for (int64_t i = 0; i < m; ++i) ASSERT_EQ(few.row_bits(i), y.row_bits(i)) << m << " " << i;
    }
  }
};

TRIMTAB_FOR_EACH_ISA(WeightOnlyTest);

// M5: int4 and int8 weights with a scale and a zero point (W4A16, W8A16), rows in bf16.
TEST_P(WeightOnlyTest, RealSizesAreNearDouble) {
  for (const SameQuantization& kind : kSameQuantizations) {
    if (kind.format.scheme == Scheme::kW4A16 || kind.format.scheme == Scheme::kW8A16) check(kind);
  }
}

}  // namespace
}  // namespace trimtab::test
