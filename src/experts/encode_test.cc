// SPDX-License-Identifier: Apache-2.0
#include "experts/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/cat.h"
#include "experts/test_formats.h"
#include "experts/test_quantised.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

MatrixSource source_of(const std::vector<float>& values, int64_t rows) {
  const int64_t cols = std::ssize(values) / rows;
  return {reinterpret_cast<const std::byte*>(values.data()), DType::kF32, rows, cols, cols, 1, {}};
}

// What refuses the source; empty: nothing.
std::string refusal(const MatrixSource& source, WeightFormat format) {
  try {
    stored_weights(source, format);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(EncodeTest, TheSameQuantizationIsCopiedExactly) {
  for (const SameQuantization& kind : kSameQuantizations) {
    for (const int64_t cols : {31, 32, 70, 300}) {
      SCOPED_TRACE(cat(kind.text(), ", ", cols, " inputs"));
      std::mt19937 random(static_cast<uint32_t>(cols));
      const Quantised matrix = kind.matrix(21, cols, random);
      const Matrix stored = stored_weights(matrix.source, kind.format);
      for (int64_t i = 0; i < stored.rows; ++i) {
        for (int64_t j = 0; j < stored.cols; ++j) {
          ASSERT_EQ(static_cast<float>(stored.at(i, j)), matrix.source.at(i, j)) << i << " " << j;
        }
      }
    }
  }
}

TEST(EncodeTest, StridesAreFollowed) {
  std::mt19937 random(4);
  Quantised matrix(32, 40, 40, 40, DType::kF8E4M3, DType::kF8E8M0, false, random);
  std::swap(matrix.source.row_stride, matrix.source.col_stride);
  std::swap(matrix.source.rows, matrix.source.cols);
  const Matrix stored = stored_weights(matrix.source, Scheme::kMXFP8);
  for (int64_t i = 0; i < 40; ++i) {
    for (int64_t j = 0; j < 32; ++j)
      ASSERT_EQ(stored.at(i, j), static_cast<double>(matrix.source.at(i, j)));
  }
}

// The most that a weight x may move in a group whose largest magnitude is `largest`.
double bound(WeightFormat format, double x, double largest) {
  const double magnitude = std::abs(x);
  switch (format.scheme) {
    case Scheme::kF32:
      return 0;
    case Scheme::kBF16:
      return magnitude * kUnitBF16;
    case Scheme::kF16:
      return std::max(magnitude * 0x1p-11, 0x1p-25);
    case Scheme::kW8A8:
    case Scheme::kW8A16:  // half a step; the scale and the quotient are rounded
      return largest / 254 * 1.0001;
    case Scheme::kW4A8:
    case Scheme::kW4A16:  // with the scale that lets -8 be used, +8 becomes 7
      return largest / 8 * 1.0001;
    case Scheme::kMXFP8: {  // up to 512 in units of the scale, of which 448 is stored
      const double scale = std::exp2(std::floor(std::log2(largest)) - 8);
      return std::max({magnitude * 0x1p-4, scale * 0x1p-10, magnitude - 448 * scale});
    }
    case Scheme::kFP8:  // then to bf16
      return std::max(magnitude * 0x1p-4, largest / 448 * 0x1p-10) * 1.0001 +
             magnitude * 1.07 * kUnitBF16;
    case Scheme::kMXFP4: {  // up to 8 in units of the scale, of which 6 is stored
      const double scale = std::exp2(std::floor(std::log2(largest)) - 2);
      return std::max({magnitude * 0.25, scale * 0.25, magnitude - 6 * scale});
    }
  }
  return 0;
}

TEST(EncodeTest, QuantisedWeightsAreWithinHalfAStep) {
  const int64_t rows = 9, cols = 300;
  std::mt19937 random(5);
  TestMatrix matrix = make_matrix(rows, cols, DType::kBF16, Form::kDense, random);
  // Rows of very different sizes, a row of zeros, a group of zeros, one large weight of either
  // sign.
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      float x = std::ldexp(matrix.source.at(i, j), static_cast<int>(3 * (i - 4)));
      if (i == 0 || (i == 1 && j < 128)) x = 0;
      if (i >= 6 && j == 140) x = i == 6 ? 700.0F : i == 7 ? -700.0F : 0x1p-30F;
      put(matrix.bytes.data() + 1 + 2 * (i * cols + j), DType::kBF16, x);
    }
  }
  for (const WeightFormat format : kFormats) {
    const Matrix stored = stored_weights(matrix.source, format);
    const int64_t group = storage(format, cols).group;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t first = 0; first < cols; first += group) {
        const int64_t end = std::min(cols, first + group);
        double largest = 0, squares = 0;
        for (int64_t j = first; j < end; ++j) {
          largest = std::max(largest, std::abs(static_cast<double>(matrix.source.at(i, j))));
        }
        for (int64_t j = first; j < end; ++j) {
          const auto x = static_cast<double>(matrix.source.at(i, j));
          ASSERT_NEAR(stored.at(i, j), x, largest == 0 ? 0 : bound(format, x, largest))
              << name(format) << " " << i << " " << j;
          squares += (stored.at(i, j) - x) * (stored.at(i, j) - x);
        }
        // Of both scales the better: never worse than half a step of the even one.
        if (format.scheme == Scheme::kW4A8 || format.scheme == Scheme::kW4A16) {
          EXPECT_LE(squares, static_cast<double>(end - first) * std::pow(largest / 14, 2) * 1.0001);
        }
      }
    }
  }
}

TEST(EncodeTest, SourcesQuantisedAnotherWayAreQuantisedAnew) {
  std::mt19937 random(6);
  const Quantised matrix(12, 96, 1, 32, DType::kU4, DType::kF32, true, random);
  for (const WeightFormat format : kFormats) {
    if (format == WeightFormat(Scheme::kW4A8, 32) || format == WeightFormat(Scheme::kW4A16, 32))
      continue;
    const Matrix stored = stored_weights(matrix.source, format);
    const int64_t group = storage(format, 96).group;
    for (int64_t i = 0; i < 12; ++i) {
      for (int64_t j = 0; j < 96; ++j) {
        double largest = 0;
        for (int64_t k = j / group * group; k < std::min<int64_t>(96, (j / group + 1) * group);
             ++k) {
          largest = std::max(largest, std::abs(static_cast<double>(matrix.source.at(i, k))));
        }
        const auto x = static_cast<double>(matrix.source.at(i, j));
        ASSERT_NEAR(stored.at(i, j), x, bound(format, x, largest))
            << name(format) << " " << i << " " << j;
      }
    }
  }
}

TEST(EncodeTest, F16IsRoundedToNearestEven) {
  std::vector<float> values, want;
  for (uint32_t code = 0; code < 0x7c00;
       ++code) {  // every finite one, and the ties between it and the next
    const float x = to_float(f16_t{static_cast<uint16_t>(code)});
    const float next = code == 0x7bff ? 65536.0F : to_float(f16_t{static_cast<uint16_t>(code + 1)});
    const float tie = (x + next) / 2, even = code % 2 == 0 ? x : next;
    for (const float sign : {1.0F, -1.0F}) {
      values.insert(values.end(), {sign * x, sign * std::nextafter(tie, 0.0F)});
      want.insert(want.end(), {sign * x, sign * x});
      if (code == 0x7bff) continue;  // its tie would become infinite
      values.push_back(sign * tie);
      want.push_back(sign * even);
    }
  }
  values.insert(values.end(), {kInf, -kInf, 0x1p-30F});
  want.insert(want.end(), {kInf, -kInf, 0.0F});
  const Matrix stored = stored_weights(source_of(values, 1), Scheme::kF16);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(static_cast<float>(stored.values[i]), want[i]) << values[i];
    ASSERT_EQ(std::signbit(stored.values[i]), std::signbit(values[i])) << values[i];
  }
  EXPECT_TRUE(std::isnan(stored_weights(source_of({kNan}, 1), Scheme::kF16).at(0, 0)));
}

// A finite weight never becomes an infinite one without a word.
TEST(EncodeTest, NumbersThatWouldBecomeInfiniteAreRefused) {
  const auto last = [](float x, WeightFormat format) {
    std::vector<float> values(3 * 8, 1.0F);
    values.back() = x;
    return refusal(source_of(values, 3), format);
  };
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_EQ(last(sign * 65519.996F, Scheme::kF16), "");
    EXPECT_EQ(last(sign * 65520.0F, Scheme::kF16),
              cat("weight 7 of row 2 is ", sign * 65520.0F, ", more than f16 can hold"));
    EXPECT_EQ(last(sign * 0x1.fefffep127F, Scheme::kBF16), "");
    EXPECT_EQ(last(sign * 0x1.ffp127F, Scheme::kBF16),
              cat("weight 7 of row 2 is ", sign * 0x1.ffp127F, ", more than bf16 can hold"));
  }
  // Of codes and scales whose product is too large.
  const float scale = 0x1p127F;
  const std::vector<int8_t> codes(8, 100);
  const MatrixSource source{reinterpret_cast<const std::byte*>(codes.data()),
                            DType::kI8,
                            1,
                            8,
                            8,
                            1,
                            {reinterpret_cast<const std::byte*>(&scale), DType::kF32, 1, 8}};
  for (const Scheme scheme : {Scheme::kF32, Scheme::kBF16, Scheme::kF16})
    EXPECT_EQ(refusal(source, scheme), "weight 0 of row 0 is inf");
}

TEST(EncodeTest, SumsThatMayOverflowAndGroupsThatCanNotBeAreRefused) {
  EXPECT_NO_THROW(storage(Scheme::kW8A8, 65536));
  EXPECT_THROW(storage(Scheme::kW8A8, 65537), InvalidArgument);
  for (const Scheme scheme : {Scheme::kW4A8, Scheme::kW4A16, Scheme::kW8A16}) {
    for (const int group : {-8, 4, 12})
      EXPECT_THROW(storage({scheme, group}, 64), InvalidArgument) << group;
  }
}

TEST(EncodeTest, TheRowOfWeightsThatCanNotBeStoredIsNamed) {
  for (const WeightFormat format : kFormats) {
    if (format.quantized_rows() == DType::kF32 || format.scheme == Scheme::kBF16)
      continue;  // they hold anything
    for (const float bad : {kNan, kInf, -kInf}) {
      std::vector<float> values(5 * 40, 1.0F);
      EXPECT_EQ(refusal(source_of(values, 5), format), "");
      values[3 * 40 + 7] = bad;
      EXPECT_EQ(refusal(source_of(values, 5), format), cat("weight 7 of row 3 is ", bad))
          << name(format);
    }
  }
}

TEST(EncodeTest, CodesThatCanNotBeStoredAreRefused) {
  std::mt19937 random(8);
  for (const Scheme scheme : {Scheme::kMXFP8, Scheme::kFP8}) {
    const bool mx = scheme == Scheme::kMXFP8;
    for (const int code : {0x7f, 0xff}) {
      Quantised matrix(6, 50, 1, mx ? 32 : 128, DType::kF8E4M3, mx ? DType::kF8E8M0 : DType::kF32,
                       false, random);
      EXPECT_EQ(refusal(matrix.source, scheme), "");
      matrix.data[static_cast<size_t>(1 + 4 * 53 + 45)] = static_cast<std::byte>(code);
      EXPECT_EQ(refusal(matrix.source, scheme), "weight 45 of row 4 is nan");
    }
  }
}

TEST(EncodeTest, ScalesWhoseLargestWeightIsNoBF16AreRefused) {
  const std::vector<std::byte> codes(64, std::byte{0x77});  // 240, or 6
  const auto with_scale = [&](DType dtype, DType scale_dtype, const auto* scales) {
    return MatrixSource{codes.data(),
                        dtype,
                        1,
                        64,
                        64,
                        1,
                        {reinterpret_cast<const std::byte*>(scales), scale_dtype, 1, 32}};
  };
  const uint8_t high[] = {127, 246}, too_high[] = {127, 247};
  EXPECT_EQ(refusal(with_scale(DType::kF8E4M3, DType::kF8E8M0, high), Scheme::kMXFP8), "");
  EXPECT_EQ(refusal(with_scale(DType::kF8E4M3, DType::kF8E8M0, too_high), Scheme::kMXFP8),
            "weights of row 0 have the scale 1.32923e+36; at most 7.56592e+35 is stored");
  const uint8_t high4[] = {127, 246}, too_high4[] = {127, 247};
  EXPECT_EQ(refusal(with_scale(DType::kF4, DType::kF8E8M0, high4), Scheme::kMXFP4), "");
  EXPECT_EQ(refusal(with_scale(DType::kF4, DType::kF8E8M0, too_high4), Scheme::kMXFP4),
            "weights of row 0 have the scale 1.32923e+36; at most 7.56592e+35 is stored");
  for (const float scale : {0x1.2p119F, 0x1.3p119F}) {
    MatrixSource source = with_scale(DType::kF8E4M3, DType::kF32, &scale);
    source.quantization.block_cols = 64;
    EXPECT_EQ(refusal(source, Scheme::kFP8).empty(), scale == 0x1.2p119F) << scale;
  }
}

}  // namespace
}  // namespace trimtab::test
