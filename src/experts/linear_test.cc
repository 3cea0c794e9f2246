// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "experts/test_formats.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab::test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

class LinearTest : public EachIsa {
 protected:
  // y against a sum in double of the weights as stored. The products of f32 numbers are not exact
  // in double, but their error is 2^-29 of the bound's.
  static void expect_near(const MatrixSource& weight, const VectorSource& bias, DType dtype,
                          const TestRows& x, const TestRows& y) {
    for (int64_t i = 0; i < y.view().rows; ++i) {
      for (int64_t j = 0; j < weight.rows; ++j) {
        double sum = bias.data == nullptr ? 0.0 : static_cast<double>(bias.at(j)),
               magnitudes = std::abs(sum);
        for (int64_t k = 0; k < weight.cols; ++k) {
          const double product = static_cast<double>(x.at(i, k)) * stored(weight.at(j, k), dtype);
          sum += product;
          magnitudes += std::abs(product);
        }
        ASSERT_NEAR(y.at(i, j), sum, sum_bound(weight.cols, magnitudes))
            << "row " << i << " of " << y.view().rows << ", output " << j << " of " << weight.rows
            << ", K " << weight.cols << ", weights " << name(dtype) << ", x "
            << name(x.view().dtype);
      }
    }
  }

  void check(int64_t m, int64_t n, int64_t k, DType dtype, DType x_dtype, bool with_bias) {
    std::mt19937 random(static_cast<uint32_t>(1 + m + 100 * n + 10000 * k));
    const TestMatrix weight = make_matrix(n, k, dtype, Form::kDense, random);
    const TestVector bias = with_bias ? make_vector(n, DType::kF32, 1, random) : TestVector{};
    const Linear linear(weight.source, bias.source, dtype, kernels());
    TestRows x(m, k, x_dtype, 2), y(m, n, DType::kF32, 3);
    x.randomise(random);
    Team team(1);
    linear.run(x.view(), y.view(), team);
    expect_near(weight.source, bias.source, dtype, x, y);
    EXPECT_TRUE(y.gaps_untouched());
  }
};

TRIMTAB_FOR_EACH_ISA(LinearTest);

TEST_P(LinearTest, EveryCountOfRows) {
  for (const int64_t m : {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 64, 97}) {
    for (const DType dtype : kTypes) {
      for (const DType x_dtype : kTypes) check(m, 83, 37, dtype, x_dtype, m % 2 == 1);
    }
  }
}

// K13: sizes are those of the matrices, never read off packed weights.
TEST_P(LinearTest, EveryTailOfOutputs) {
  for (const int64_t n : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 80, 81, 128, 131}) {
    for (const DType dtype : kTypes) check(7, n, 19, dtype, dtype, n % 2 == 0);
  }
}

TEST_P(LinearTest, EveryTailOfInputs) {
  for (const int64_t k : {1, 2, 3, 7, 8, 9, 511, 512, 513, 1031}) {
    for (const DType dtype : kTypes) check(3, 21, k, dtype, dtype, true);
  }
}

TEST_P(LinearTest, ReadsEveryFormOfSource) {
  const int64_t n = 75, k = 29;
  for (const DType source_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Form form : {Form::kDense, Form::kPadded, Form::kTransposed, Form::kInterleaved}) {
      std::mt19937 random(7);
      const TestMatrix weight = make_matrix(n, k, source_dtype, form, random);
      const TestVector bias =
          make_vector(n, source_dtype, form == Form::kInterleaved ? 2 : 1, random);
      for (const DType dtype : kTypes) {
        const Linear linear(weight.source, bias.source, dtype, kernels());
        TestRows x(5, k, dtype), y(5, n, DType::kF32);
        x.randomise(random);
        Team team(1);
        linear.run(x.view(), y.view(), team);
        expect_near(weight.source, bias.source, dtype, x, y);
      }
    }
  }
}

TEST_P(LinearTest, ARowHasTheSameBitsAloneInAnyBatchAndWithAnyTeam) {
  const int64_t m = 110, n = 133, k = 67;
  for (const DType dtype : kTypes) {
    std::mt19937 random(3);
    const TestMatrix weight = make_matrix(n, k, dtype, Form::kDense, random);
    const TestVector bias = make_vector(n, DType::kF32, 1, random);
    const Linear linear(weight.source, bias.source, dtype, kernels());
    TestRows x(m, k, dtype), all(m, n, DType::kF32);
    x.randomise(random);
    Team one(1);
    linear.run(x.view(), all.view(), one);
    for (const int threads : {2, 3}) {
      Team team(threads);
      TestRows y(m, n, DType::kF32);
      linear.run(x.view(), y.view(), team);
      for (int64_t i = 0; i < m; ++i)
        ASSERT_EQ(y.row_bits(i), all.row_bits(i)) << threads << " threads, row " << i;
    }
    for (const int64_t batch : {1, 2, 3, 4, 5, 6, 7, 13}) {
      for (int64_t first = 0; first + batch <= 20; ++first) {
        TestRows y(batch, n, DType::kF32);
        linear.run(x.view().slice(first, batch), y.view(), one);
        for (int64_t i = 0; i < batch; ++i) {
          ASSERT_EQ(y.row_bits(i), all.row_bits(first + i))
              << "row " << i << " of " << batch << " from " << first;
        }
      }
    }
  }
}

// Rows that are prepared once, in every format: against sums in double of what weights and rows
// stand for, and with the same bits for any batch and team.
TEST_P(LinearTest, WithScratchEveryFormat) {
  const int64_t m = 97, n = 133, k = 288;
  for (const WeightFormat format : kFormats) {
    std::mt19937 random(11);
    const TestMatrix weight = make_matrix(n, k, DType::kF32, Form::kDense, random);
    const TestVector bias = make_vector(n, DType::kF32, 1, random);
    const Linear linear(weight.source, bias.source, format, kernels());
    const Matrix weights = stored_weights(weight.source, format);
    for (const DType x_dtype : kTypes) {
      TestRows x(m, k, x_dtype, 2), all(m, n, DType::kF32, 3);
      x.randomise(random);
      const auto run = [&](const ConstRows& rows, const Rows& y, int threads) {
        Team team(threads);
        const Buffer scratch(linear.scratch_bytes(rows.rows));
        linear.run(rows, y, {scratch.data(), scratch.bytes()}, team);
      };
      run(x.view(), all.view(), 1);
      EXPECT_TRUE(all.gaps_untouched());
      const Matrix rows = multiplied_rows(x, format);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = static_cast<double>(bias.source.at(j)), magnitudes = std::abs(sum);
          for (int64_t c = 0; c < k; ++c) {
            sum += rows.at(i, c) * weights.at(j, c);
            magnitudes += std::abs(rows.at(i, c) * weights.at(j, c));
          }
          ASSERT_NEAR(all.at(i, j), sum, sum_bound(k, magnitudes))
              << name(format) << " " << name(x_dtype) << " row " << i << " output " << j;
        }
      }
      for (const int64_t batch : {1, 2, 6, 7, 13, 40}) {
        TestRows y(batch, n, DType::kF32);
        run(x.view().slice(5, batch), y.view(), 1 + static_cast<int>(batch) % 3);
        for (int64_t i = 0; i < batch; ++i)
          ASSERT_EQ(y.row_bits(i), all.row_bits(5 + i)) << name(format) << " " << batch;
      }
    }
  }
}

TEST_P(LinearTest, ScratchMakesNoDifferenceToPlainFormats) {
  for (const DType dtype : kTypes) {
    std::mt19937 random(12);
    const TestMatrix weight = make_matrix(70, 301, dtype, Form::kDense, random);
    const Linear linear(weight.source, {}, dtype, kernels());
    TestRows x(31, 301, dtype), without(31, 70, DType::kF32), with(31, 70, DType::kF32);
    x.randomise(random);
    Team team(2);
    const Buffer scratch(linear.scratch_bytes(31));
    linear.run(x.view(), without.view(), team);
    linear.run(x.view(), with.view(), {scratch.data(), scratch.bytes()}, team);
    for (int64_t i = 0; i < 31; ++i) ASSERT_EQ(with.row_bits(i), without.row_bits(i)) << i;
  }
}

TEST_P(LinearTest, NonFiniteInputsStayInTheirRow) {
  std::mt19937 random(5);
  const TestMatrix weight = make_matrix(20, 9, DType::kF32, Form::kDense, random);
  const Linear linear(weight.source, {}, DType::kF32, kernels());
  TestRows x(3, 9, DType::kF32), y(3, 20, DType::kF32);
  x.randomise(random);
  x.set(1, 4, std::nanf(""));
  Team team(1);
  linear.run(x.view(), y.view(), team);
  for (int64_t j = 0; j < 20; ++j) {
    EXPECT_TRUE(std::isfinite(y.at(0, j)) && std::isfinite(y.at(2, j)));
    EXPECT_TRUE(std::isnan(y.at(1, j)));
  }
}

TEST(LinearArgumentsTest, RefusesWhatDoesNotFit) {
  std::mt19937 random(1);
  const TestMatrix weight = make_matrix(4, 6, DType::kF32, Form::kDense, random);
  const TestVector bias = make_vector(4, DType::kF32, 1, random);
  MatrixSource wrong = weight.source;
  wrong.dtype = DType::kF8E4M3;
  EXPECT_THROW(Linear(wrong, {}, DType::kF32), InvalidArgument);
  wrong = weight.source;
  wrong.rows = 0;
  EXPECT_THROW(Linear(wrong, {}, DType::kF32), InvalidArgument);
  wrong = weight.source;
  wrong.data = nullptr;
  EXPECT_THROW(Linear(wrong, {}, DType::kF32), InvalidArgument);
  VectorSource short_bias = bias.source;
  short_bias.size = 3;
  EXPECT_THROW(Linear(weight.source, short_bias, DType::kF32), InvalidArgument);

  const Linear linear(weight.source, bias.source, DType::kF32);
  EXPECT_EQ(linear.in(), 6);
  EXPECT_EQ(linear.out(), 4);
  Team team(1);
  const auto run = [&](const TestRows& x, const TestRows& y) {
    linear.run(x.view(), y.view(), team);
  };
  EXPECT_NO_THROW(run({2, 6, DType::kF32}, {2, 4, DType::kF32}));
  EXPECT_THROW(run({2, 5, DType::kF32}, {2, 4, DType::kF32}), InvalidArgument);
  EXPECT_THROW(run({2, 6, DType::kF16}, {2, 4, DType::kF32}), InvalidArgument);
  EXPECT_THROW(run({2, 6, DType::kF32}, {3, 4, DType::kF32}), InvalidArgument);
  EXPECT_THROW(run({2, 6, DType::kF32}, {2, 5, DType::kF32}), InvalidArgument);
  EXPECT_THROW(run({2, 6, DType::kF32}, {2, 4, DType::kBF16}), InvalidArgument);
  EXPECT_THROW(run({2, 6, DType::kF32, -1}, {2, 4, DType::kF32}), InvalidArgument);
}

TEST(LinearArgumentsTest, RefusesScratchThatDoesNotFit) {
  std::mt19937 random(1);
  const TestMatrix weight = make_matrix(4, 6, DType::kF32, Form::kDense, random);
  const Linear linear(weight.source, {}, Scheme::kW8A8);
  const TestRows x(2, 6, DType::kF32), y(2, 4, DType::kF32);
  const Buffer memory(linear.scratch_bytes(2) + 64);
  const std::span<std::byte> scratch(memory.data(), memory.bytes());
  Team team(1);
  EXPECT_NO_THROW(linear.run(x.view(), y.view(), scratch, team));
  EXPECT_THROW(linear.run(x.view(), y.view(), scratch.first(8), team), InvalidArgument);
  EXPECT_THROW(linear.run(x.view(), y.view(), scratch.subspan(4), team), InvalidArgument);
  EXPECT_THROW(linear.run(x.view(), y.view(), team), InvalidArgument);
}

TEST(LinearArgumentsTest, AnEmptyLinearRefusesToRun) {
  Team team(1);
  const TestRows x(1, 3, DType::kF32), y(1, 2, DType::kF32);
  EXPECT_THROW(Linear().run(x.view(), y.view(), team), InvalidArgument);
}

}  // namespace
}  // namespace trimtab::test
