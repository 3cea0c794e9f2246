// SPDX-License-Identifier: Apache-2.0
// Every format on every instruction set, against sums in double of the weights and rows as they are
// stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "experts/test_formats.h"
#include "experts/test_mlp.h"
#include "experts/test_quantised.h"

namespace trimtab::test {
namespace {

constexpr int64_t kMostRows = 97;
// Around the heights of tiles, packed (up to 12) and not (up to 6), and of blocks of them.
constexpr int64_t kRowCounts[] = {0, 1, 2, 5, 6, 7, 8, 12, 13, 24, 25, 96};

struct Shape {
  int64_t hidden, intermediate;
};
// Odd; neither whole panels nor whole groups; several groups with a rest; whole in every respect.
constexpr Shape kShapes[] = {{33, 45}, {70, 37}, {300, 67}, {128, 256}};

// x weights^T + bias, and the bound of its error in f32. Formats with integer sums round once for
// each group's sum on its way to f32, once for each group added, and for the row's scale; their
// sums are exact in a group. All others round each product's addition (and products, where they are
// not fused: sum_bound() covers both).
class Product {
 public:
  Product(const TestRows& x, const MatrixSource& weight, const VectorSource& bias,
          WeightFormat format)
      : x_(multiplied_rows(x, format)), weights_(stored_weights(weight, format)), bias_(bias) {
    const Storage s = storage(format, weight.cols);
    roundings_ = format.quantized_rows() == DType::kI8 ? 2 * s.groups() : s.padded_in;
  }
  struct Sum {
    double value, bound;
  };
  Sum at(int64_t i, int64_t j) const {
    const double* const x = x_.row(i);
    const double* const w = weights_.row(j);
    double sum = bias_.data == nullptr ? 0.0 : static_cast<double>(bias_.at(j)),
           magnitudes = std::abs(sum);
    for (int64_t k = 0; k < x_.cols; ++k) {
      sum += x[k] * w[k];
      magnitudes += std::abs(x[k] * w[k]);
    }
    return {sum, sum_bound(roundings_, magnitudes)};
  }

 private:
  Matrix x_, weights_;
  VectorSource bias_;
  int64_t roundings_;
};

class FormatsTest : public EachIsa {
 protected:
  // silu, as in mlp_test.cc.
  static void expect_act_near(const MlpSource& source, WeightFormat format, const TestRows& x,
                              const TestRows& act) {
    const Product gate(x, source.gate, source.gate_bias, format);
    const Product up(x, source.up, source.up_bias, format);
    for (int64_t i = 0; i < act.view().rows; ++i) {
      for (int64_t j = 0; j < act.view().cols; ++j) {
        const auto [g, dg] = gate.at(i, j);
        const auto [u, du] = up.at(i, j);
        const double want = g / (1 + std::exp(-g)) * u;
        const double inner =
            1.1 * dg * (std::abs(u) + du) + std::abs(g) * du + 8 * kUnit * std::abs(want);
        const double rounding =
            act.view().dtype == DType::kBF16 ? kUnitBF16 * (std::abs(want) + inner) : 0.0;
        ASSERT_NEAR(act.at(i, j), want, inner + rounding) << "act " << i << " " << j;
      }
    }
  }

  static void expect_down_near(const MlpSource& source, WeightFormat format, const TestRows& act,
                               const TestRows& y) {
    const Product down(act, source.down, source.down_bias, format);
    for (int64_t i = 0; i < y.view().rows; ++i) {
      for (int64_t j = 0; j < y.view().cols; ++j) {
        const auto [want, bound] = down.at(i, j);
        ASSERT_NEAR(y.at(i, j), want, bound) << "y " << i << " " << j;
      }
    }
  }

  // Rows [first, first + m) alone have the bits that they have among all.
  static void expect_same_bits(const Mlp& mlp, const TestRows& x, int64_t first, int64_t m,
                               const TestRows& all_act, const TestRows& all_y, Team& team) {
    TestRows act(m, mlp.intermediate(), mlp.dtype(), 2), y(m, mlp.hidden(), DType::kF32, 1);
    gate_up(mlp, x.view().slice(first, m), act.view(), team);
    down(mlp, act.view(), y.view(), team);
    for (int64_t i = 0; i < m; ++i) {
      ASSERT_EQ(act.row_bits(i), all_act.row_bits(first + i))
          << "act, row " << i << " of " << m << " from " << first;
      ASSERT_EQ(y.row_bits(i), all_y.row_bits(first + i))
          << "y, row " << i << " of " << m << " from " << first;
    }
    EXPECT_TRUE(act.gaps_untouched() && y.gaps_untouched());
  }

  void check(const MlpSource& source, WeightFormat format, DType x_dtype,
             std::mt19937& random) const {
    const Mlp mlp(source, {}, format, kernels());
    TestRows x(kMostRows, mlp.hidden(), x_dtype, 1);
    x.randomise(random);
    TestRows act(kMostRows, mlp.intermediate(), mlp.dtype(), 3),
        y(kMostRows, mlp.hidden(), DType::kF32, 1);
    Team team(1), three(3);
    gate_up(mlp, x.view(), act.view(), team);
    expect_act_near(source, format, x, act);
    down(mlp, act.view(), y.view(), team);
    expect_down_near(source, format, act, y);
    for (const int64_t m : kRowCounts) {
      expect_same_bits(mlp, x, 0, m, act, y, team);
      expect_same_bits(mlp, x, kMostRows - m, m, act, y, team);
    }
    expect_same_bits(mlp, x, 0, kMostRows, act, y, three);
  }

  void check(WeightFormat format, Shape shape, DType x_dtype, bool biases) const {
    SCOPED_TRACE(cat(name(format), ", ", shape.hidden, " -> ", shape.intermediate, ", x ",
                     name(x_dtype), biases ? ", biases" : ""));
    std::mt19937 random(static_cast<uint32_t>(10 * shape.hidden + shape.intermediate));
    const TestMlp source(shape.hidden, shape.intermediate, DType::kBF16, Form::kDense, biases,
                         random);
    check(source.source(), format, x_dtype, random);
  }
};

TRIMTAB_FOR_EACH_ISA(FormatsTest);

// M3: int8 weights and activations (W8A8), scales per channel and token.
TEST_P(FormatsTest, EveryShapeIsNearDoubleAndHasTheSameBitsInAnyBatch) {
  for (const WeightFormat format : kFormats) {
    for (const Shape shape : kShapes) check(format, shape, format.rows(), shape.hidden % 2 == 0);
  }
}

TEST_P(FormatsTest, RowsOfTheOtherTypeAreRoundedOnce) {
  for (const WeightFormat format : kFormats) {
    check(format, {70, 37}, format.rows() == DType::kF32 ? DType::kBF16 : DType::kF32, true);
  }
}

TEST_P(FormatsTest, EveryTailOfOutputsAndInputs) {
  for (const WeightFormat format : kFormats) {
    for (const int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 65})
      check(format, {n, 66 - n}, format.rows(), false);
  }
}

// M4: int4 weights, int8 activations (W4A8), scales and zero points per group or channel.
TEST_P(FormatsTest, WeightsThatCameQuantised) {
  for (const SameQuantization& kind : kSameQuantizations) {
    SCOPED_TRACE(kind.text());
    std::mt19937 random(3);
    const Quantised gate = kind.matrix(67, 270, random), up = kind.matrix(67, 270, random),
                    down = kind.matrix(270, 67, random);
    MlpSource source = {gate.source, up.source, down.source, {}, {}, {}};
    check(source, kind.format, kind.format.rows(), random);
    if (!kind.zeros) continue;
    // One half with zero points, the other without.
    source.up.quantization.zeros = nullptr;
    check(source, kind.format, kind.format.rows(), random);
  }
}

}  // namespace
}  // namespace trimtab::test
