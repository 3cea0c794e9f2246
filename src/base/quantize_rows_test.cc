// SPDX-License-Identifier: Apache-2.0
#include "base/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Quantised {
  std::vector<std::byte> q;
  std::vector<std::byte> scales;
  std::vector<float> back;
  int8_t i8(size_t i) const { return static_cast<int8_t>(q[i]); }
  float scale(size_t row) const { return reinterpret_cast<const float*>(scales.data())[row]; }
};

template <class T>
Quantised quantise(const std::vector<T>& x, int64_t cols, DType dtype) {
  const auto rows = static_cast<int64_t>(x.size()) / cols;
  const ScaleShape shape = scale_shape(dtype, cols);
  Quantised result{std::vector<std::byte>(x.size()),
                   std::vector<std::byte>(static_cast<size_t>(rows) * shape.row_bytes()),
                   std::vector<float>(x.size())};
  const Rows q(result.q.data(), rows, cols, cols, dtype);
  const Rows scales(result.scales.data(), rows, shape.cols, shape.cols, shape.dtype);
  quantize_rows(ConstRows(x.data(), rows, cols), q, scales);
  dequantize_rows(q, scales, Rows(result.back.data(), rows, cols));
  return result;
}

TEST(QuantizeInt8, ScalesByTheLargestMagnitudeAndRoundsTiesToEven) {
  const Quantised r = quantise<float>({-254, 1, 3, 5, -5, 253, 0, -0.0F}, 8, DType::kI8);
  EXPECT_EQ(r.scale(0), 2.0F);
  const std::vector<int> expected{-127, 0,   2, 2,
                                  -2,   126, 0, 0};  // 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, 126.5 -> 126
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(r.i8(i), expected[i]) << i;
}

TEST(QuantizeInt8, IsTheNearestMultipleForRandomRows) {
  std::mt19937 random(1);
  std::normal_distribution<float> value;
  for (const int64_t cols : {1, 2, 7, 32, 100, 2048}) {
    std::vector<float> x(static_cast<size_t>(cols * 5));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = value(random) * std::ldexp(1.0F, static_cast<int>(i) % 30 - 15);
    const Quantised r = quantise(x, cols, DType::kI8);
    for (size_t i = 0; i < x.size(); ++i) {
      const float scale = r.scale(i / static_cast<size_t>(cols));
      EXPECT_LE(std::abs(static_cast<int>(r.i8(i))), 127);
      EXPECT_LE(std::abs(r.back[i] - x[i]), 0.5001F * scale);
    }
  }
}

TEST(QuantizeInt8, ZerosTinyRowsNaNAndInfinity) {
  const Quantised r =
      quantise<float>({0, 0, 1e-40F, 0, 1, kNaN, 2, -kInf, -kNaN, 5, 3e38F, 3e38F}, 2, DType::kI8);
  for (const size_t row : {0U, 1U}) EXPECT_EQ(r.scale(row), 0.0F);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(r.i8(i), 0) << i;
  for (const size_t row : {2U, 3U, 4U}) EXPECT_TRUE(std::isnan(r.scale(row))) << row;
  EXPECT_EQ(r.i8(10), 127);
  EXPECT_EQ(r.i8(11), 127);
}

TEST(QuantizeInt8, ReadsBf16) {
  std::vector<float> x{1.5F, -3.0F, 0.25F};
  std::vector<bf16_t> b;
  for (const float v : x) b.push_back(to_bf16(v));
  EXPECT_EQ(quantise(b, 3, DType::kI8).q, quantise(x, 3, DType::kI8).q);
  x.resize(32);
  b.resize(32, to_bf16(0));
  EXPECT_EQ(quantise(b, 32, DType::kF8E4M3).q, quantise(x, 32, DType::kF8E4M3).q);
}

// All E4M3 values that are not NaN, from the definition of the format.
std::vector<double> e4m3_values() {
  std::vector<double> values;
  for (int exponent = 0; exponent < 16; ++exponent) {
    for (int mantissa = 0; mantissa < 8; ++mantissa) {
      if (exponent == 15 && mantissa == 7) continue;
      values.push_back(exponent == 0 ? mantissa / 512.0
                                     : std::ldexp(1 + mantissa / 8.0, exponent - 7));
    }
  }
  return values;
}

TEST(QuantizeMx, IsTheNearestValueOfTheFormatTiesToEven) {
  const std::vector<double> values = e4m3_values();
  std::mt19937 random(2);
  std::uniform_int_distribution<size_t> any(0, values.size() - 2);
  std::uniform_int_distribution<int> power(-100, 100), kind(0, 2);
  for (int round = 0; round < 300; ++round) {
    const int exponent = power(random);
    // The first element makes the scale 2^exponent; the others are values of the format, midpoints
    // and in between.
    std::vector<float> x{std::ldexp(256.0F, exponent)};
    std::vector<size_t> code{120};
    while (x.size() < static_cast<size_t>(kMxBlock)) {
      const size_t below = any(random);
      const double low = values[below], high = values[below + 1], middle = (low + high) / 2;
      const int k = kind(random);
      const double v = k == 0 ? low : k == 1 ? middle : (middle + high) / 2;
      x.push_back(static_cast<float>(std::ldexp(x.size() % 2 == 0 ? v : -v, exponent)));
      code.push_back(k == 0 ? below : k == 1 ? below + below % 2 : below + 1);
    }
    const Quantised r = quantise(x, kMxBlock, DType::kF8E4M3);
    EXPECT_EQ(static_cast<int>(r.scales[0]), exponent + 127);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(static_cast<size_t>(r.q[i]) & 0x7fU, code[i]) << x[i];
      EXPECT_EQ((static_cast<int>(r.q[i]) & 0x80) != 0, std::signbit(x[i]));
    }
  }
}

TEST(QuantizeMx, SaturatesBetweenTheLargestValueAndTheNextPower) {
  std::vector<float> x(32, 0.0F);
  x[0] = 511.0F;
  x[1] = -449.0F;
  x[2] = 1.0F;
  const Quantised r = quantise(x, 32, DType::kF8E4M3);
  EXPECT_EQ(r.back[0], 448.0F);
  EXPECT_EQ(r.back[1], -448.0F);
  EXPECT_EQ(r.back[2], 1.0F);
}

TEST(QuantizeMx, ZerosTinyBlocksNaNAndInfinity) {
  std::vector<float> x(5 * 32, 0.0F);
  x[32] = std::ldexp(1.0F, -140);  // below what 2^-127 * 2^-9 can show
  x[64] = kNaN;
  x[65] = 1.0F;
  x[96] = -kInf;
  x[128] = std::numeric_limits<float>::max();
  const Quantised r = quantise(x, 32, DType::kF8E4M3);
  const std::vector<int> scales{0, 0, 255, 255, 127 + 119};
  for (size_t block = 0; block < 5; ++block)
    EXPECT_EQ(static_cast<int>(r.scales[block]), scales[block]) << block;
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(static_cast<int>(r.q[i]), 0) << i;
  EXPECT_TRUE(std::isnan(r.back[64]));
  EXPECT_TRUE(std::isnan(r.back[65]));
  EXPECT_EQ(r.back[128], std::ldexp(448.0F, 119));
}

TEST(QuantizeRows, RefusesWhatDoesNotFit) {
  std::vector<float> x(64);
  std::vector<std::byte> q(64), s(64);
  const ConstRows rows(x.data(), 2, 32);
  const auto to = [&](int64_t n, int64_t cols, DType dtype) {
    return Rows(q.data(), n, cols, cols, dtype);
  };
  const auto scales = [&](int64_t cols, DType dtype) {
    return Rows(s.data(), 2, cols, cols, dtype);
  };
  EXPECT_THROW(quantize_rows(rows, to(2, 32, DType::kBF16), scales(1, DType::kF32)),
               InvalidArgument);
  EXPECT_THROW(quantize_rows(rows, to(1, 32, DType::kI8), scales(1, DType::kF32)), InvalidArgument);
  EXPECT_THROW(quantize_rows(rows, to(2, 32, DType::kI8), scales(2, DType::kF32)), InvalidArgument);
  EXPECT_THROW(quantize_rows(rows, to(2, 32, DType::kF8E4M3), scales(1, DType::kF32)),
               InvalidArgument);
  EXPECT_THROW(quantize_rows(ConstRows(x.data(), 2, 31), to(2, 31, DType::kF8E4M3),
                             scales(0, DType::kF8E8M0)),
               InvalidArgument);
  EXPECT_THROW(quantize_rows(to(2, 32, DType::kI8), to(2, 32, DType::kI8), scales(1, DType::kF32)),
               InvalidArgument);
}

// Rows as each type in which they travel, and back to F32 and BF16.
TEST(EncodeRows, BF16IsTheRoundingOfF32) {
  constexpr int64_t kRows = 3, kCols = 64;
  std::vector<float> x(kRows * kCols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) * 3.0F;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    const ScaleShape shape = scale_shape(dtype, kCols);
    std::vector<std::byte> rows(shape_bytes(dtype, kRows, kCols)), scales(3 * shape.row_bytes());
    const Rows to(rows.data(), kRows, kCols, kCols, dtype);
    const Rows with(scales.data(), shape.cols > 0 ? kRows : 0, shape.cols, shape.cols, shape.dtype);
    encode_rows(ConstRows(x.data(), kRows, kCols), to, with);
    std::vector<float> back(x.size());
    std::vector<bf16_t> rounded(x.size());
    decode_rows(to, with, Rows(back.data(), kRows, kCols));
    decode_rows(
        to, with,
        Rows(reinterpret_cast<std::byte*>(rounded.data()), kRows, kCols, kCols, DType::kBF16));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(back[i], x[i], dtype == DType::kF32 ? 0 : 0.4) << name(dtype);
      EXPECT_EQ(to_float(rounded[i]), to_float(to_bf16(back[i]))) << name(dtype);
    }
  }
}

}  // namespace
}  // namespace trimtab
