// SPDX-License-Identifier: Apache-2.0
#include "experts/source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cat.h"
#include "experts/test_quantised.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab::test {
namespace {

TEST(SourceTest, AtReadsEveryTypeThroughTheStrides) {
  const uint16_t halves[] = {0, 0x3c00, 0, 0xc100, 0, 0x0001};  // f16: 1, -2.5, 2^-24
  const MatrixSource f16 = {
      reinterpret_cast<const std::byte*>(halves + 1), DType::kF16, 1, 3, 0, 2};
  EXPECT_EQ(f16.at(0, 0), 1.0F);
  EXPECT_EQ(f16.at(0, 1), -2.5F);
  EXPECT_EQ(f16.at(0, 2), 0x1p-24F);
  const float floats[] = {1, 2, 3, 4, 5, 6};
  const MatrixSource transposed = {
      reinterpret_cast<const std::byte*>(floats), DType::kF32, 2, 3, 1, 2};
  EXPECT_EQ(transposed.at(1, 2), 6.0F);
  EXPECT_EQ(transposed.at(0, 1), 3.0F);
  const bf16_t bfloats[] = {to_bf16(1.5F), to_bf16(-8.0F)};
  const VectorSource vector = {reinterpret_cast<const std::byte*>(bfloats), DType::kBF16, 2, 1};
  EXPECT_EQ(vector.at(1), -8.0F);
  const VectorSource wrong = {reinterpret_cast<const std::byte*>(bfloats), DType::kI32, 1, 1};
  EXPECT_THROW(wrong.at(0), InvalidArgument);
}

constexpr DType kQuantised[] = {DType::kI8, DType::kF8E4M3, DType::kF4, DType::kU4};
constexpr DType kScales[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E8M0};

// Calls body with matrices of every type of elements and scales, with and without zero points,
// blocks that divide the matrix and blocks that do not.
template <class Body>
void for_each_kind(const Body& body) {
  std::mt19937 random(7);
  constexpr int64_t kRows = 21, kCols = 70;
  const std::pair<int64_t, int64_t> blocks[] = {{1, 32},        {1, kCols}, {16, 16},
                                                {kRows, kCols}, {1, 1},     {100, 7}};
  for (const DType dtype : kQuantised) {
    for (const DType scale_dtype : kScales) {
      for (const auto& [block_rows, block_cols] : blocks) {
        for (const bool with_zeros : {false, true}) {
          if (with_zeros && dtype != DType::kI8 && dtype != DType::kU4) continue;
          SCOPED_TRACE(cat(name(dtype), ", scales ", name(scale_dtype), ", blocks of ", block_rows,
                           " x ", block_cols, with_zeros ? ", zero points" : ""));
          body(Quantised(kRows, kCols, block_rows, block_cols, dtype, scale_dtype, with_zeros,
                         random));
        }
      }
    }
  }
}

TEST(SourceTest, QuantisedElementsAreWhatTheyStandFor) {
  for_each_kind([](const Quantised& matrix) {
    const MatrixSource& source = matrix.source;
    ASSERT_NO_THROW(check_source(source, "a matrix"));
    for (int64_t i = 0; i < source.rows; ++i) {
      for (int64_t j = 0; j < source.cols; ++j) {
        // q - zero is exact, the product is rounded once.
        ASSERT_EQ(source.at(i, j), static_cast<float>(matrix.want(i, j))) << i << ", " << j;
      }
    }
  });
}

TEST(SourceTest, ReadsRowsAsSingleElements) {
  const auto check = [](const MatrixSource& source) {
    std::vector<float> all(static_cast<size_t>(source.rows * source.cols) + 1, -7.0F);
    read_rows(source, 0, Rows(all.data(), source.rows, source.cols));
    EXPECT_EQ(all.back(), -7.0F);
    for (int64_t i = 0; i < source.rows; ++i) {
      const float* row = all.data() + i * source.cols;
      for (int64_t j = 0; j < source.cols; ++j)
        ASSERT_EQ(row[j], source.at(i, j)) << i << ", " << j;
      std::vector<float> part(static_cast<size_t>(source.cols) + 1, -7.0F);
      const int64_t begin = i % source.cols, end = std::min(source.cols, begin + 3 * i);
      read_row(source, i, begin, end, part.data());
      ASSERT_TRUE(std::equal(row + begin, row + end, part.begin())) << i;
      EXPECT_EQ(part[end - begin], -7.0F);
    }
  };
  for_each_kind([&](const Quantised& matrix) {
    check(matrix.source);
    MatrixSource transposed = matrix.source;  // any codes will do
    std::swap(transposed.row_stride, transposed.col_stride);
    std::swap(transposed.rows, transposed.cols);
    Quantization& q = transposed.quantization;
    std::swap(q.block_rows, q.block_cols);
    std::swap(q.scale_row_stride, q.scale_col_stride);
    if (q.zeros == nullptr) check(transposed);
  });
  std::mt19937 random(8);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Form form : {Form::kDense, Form::kPadded, Form::kTransposed, Form::kInterleaved}) {
      check(make_matrix(9, 35, dtype, form, random).source);
    }
  }
}

// Scales at both ends of E8M0 are taken as they are, the results as IEEE arithmetic has them.
TEST(SourceTest, ExtremesOfE8M0) {
  const std::byte code{0x27};  // 6, then 1
  const float infinity = std::numeric_limits<float>::infinity();
  const struct {
    int scale;
    float six, one;
  } cases[] = {{0, 6 * 0x1p-127F, 0x1p-127F},
               {1, 6 * 0x1p-126F, 0x1p-126F},
               {127, 6, 1},
               {254, infinity, 0x1p127F}};
  for (const auto& [scale, six, one] : cases) {
    const std::byte scales[] = {static_cast<std::byte>(scale)};
    MatrixSource source = {&code, DType::kF4, 1, 2, 2, 1, {scales, DType::kF8E8M0, 1, 32}};
    EXPECT_NO_THROW(check_source(source, "a matrix"));
    EXPECT_EQ(source.at(0, 0), six) << scale;
    EXPECT_EQ(source.at(0, 1), one) << scale;
  }
}

TEST(SourceTest, RefusesWhatCanNotBe) {
  std::mt19937 random(9);
  const auto refusal = [](const MatrixSource& source) -> std::string {
    try {
      check_source(source, "the weight");
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  const auto text = [&](DType dtype, bool with_zeros, auto spoil) {
    Quantised matrix(4, 8, 2, 4, dtype, DType::kF32, with_zeros, random);
    EXPECT_EQ(refusal(matrix.source), "");
    spoil(matrix.source);
    return refusal(matrix.source);
  };
  EXPECT_EQ(text(DType::kI8, false, [](MatrixSource& s) { s.quantization = {}; }),
            "the weight is I8 without scales");
  EXPECT_EQ(text(DType::kI8, false, [](MatrixSource& s) { s.dtype = DType::kF32; }),
            "the weight is F32 and has scales");
  EXPECT_EQ(text(DType::kI8, false, [](MatrixSource& s) { s.dtype = DType::kI32; }),
            "the weight must be F32, BF16, F16, I8, U8, F8_E4M3, F4 or U4, not I32");
  EXPECT_EQ(
      text(DType::kI8, false, [](MatrixSource& s) { s.quantization.scale_dtype = DType::kI8; }),
      "the weight: scales must be F32, BF16, F16 or F8_E8M0, not I8");
  EXPECT_EQ(text(DType::kI8, false, [](MatrixSource& s) { s.quantization.block_cols = 0; }),
            "the weight: blocks of 2 x 0");
  EXPECT_EQ(text(DType::kI8, false, [](MatrixSource& s) { s.rows = 0; }),
            "the weight is empty: [0, 8]");
  EXPECT_EQ(text(DType::kI8, true, [](MatrixSource& s) { s.dtype = DType::kF8E4M3; }),
            "the weight: F8_E4M3 has no zero points");
  EXPECT_EQ(text(DType::kU4, true, [](MatrixSource& s) { s.quantization.zero_rows_per_word = 0; }),
            "the weight: 0 zero points in a word");

  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const auto& [scale, written] : {std::pair{nan, "nan"}, {infinity, "inf"}, {-0.5F, "-0.5"}}) {
    const float scales[] = {1.0F, 0.0F, 1.0F, scale};
    EXPECT_EQ(text(DType::kI8, false,
                   [&](MatrixSource& s) {
                     s.quantization.scales = reinterpret_cast<const std::byte*>(scales);
                     s.quantization.scale_row_stride = 2;
                   }),
              cat("the weight: the scale of block (1, 1) is ", written));
  }
  const std::byte no_number[] = {std::byte{127}, std::byte{255}};
  EXPECT_EQ(text(DType::kI8, false,
                 [&](MatrixSource& s) { s.quantization = {no_number, DType::kF8E8M0, 4, 4}; }),
            "the weight: the scale of block (0, 1) is nan");
}

// Packing takes any source: the product is the same as with the dequantised matrix.
TEST(SourceTest, LinearsOfQuantisedMatricesAreThoseOfTheDequantised) {
  for_each_kind([](const Quantised& matrix) {
    const MatrixSource& source = matrix.source;
    std::vector<float> values(static_cast<size_t>(source.rows * source.cols));
    read_rows(source, 0, Rows(values.data(), source.rows, source.cols));
    const MatrixSource plain = {reinterpret_cast<const std::byte*>(values.data()),
                                DType::kF32,
                                source.rows,
                                source.cols,
                                source.cols,
                                1};
    std::mt19937 random(10);
    TestRows x(3, source.cols, DType::kF32), y(3, source.rows, DType::kF32),
        want(3, source.rows, DType::kF32);
    x.randomise(random);
    Team team(1);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Linear(source, {}, dtype).run(x.view(), y.view(), team);
      Linear(plain, {}, dtype).run(x.view(), want.view(), team);
      for (int64_t i = 0; i < 3; ++i) ASSERT_EQ(y.row_bits(i), want.row_bits(i)) << name(dtype);
    }
  });
}

}  // namespace
}  // namespace trimtab::test
