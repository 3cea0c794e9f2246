// SPDX-License-Identifier: Apache-2.0
#include "base/quantize_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffU;
constexpr int32_t kInfinity = 0x7f800000;
constexpr int kE4M3MaxExponent = 8;
constexpr uint8_t kE8M0NaN = 0xff;

// The bits of the largest magnitude: non-negative floats order as their bits do, and integers have a maximum that
// vectorises. kInfinity or more: the row has an infinity or a NaN.
template <class T>
int32_t largest_magnitude(const T* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<int32_t>(std::bit_cast<uint32_t>(to_float(x[i])) & kMagnitude));
  }
  return largest;
}

template <class T>
void quantize_int8_row(const T* x, int64_t count, int8_t* __restrict q, float* scale) {
  const int32_t largest = largest_magnitude(x, count);
  *scale = largest >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(largest) / 127.0F;
  if (!(*scale >= std::numeric_limits<float>::min())) {
    std::fill_n(q, count, int8_t{0});
    if (largest < kInfinity) *scale = 0.0F;
    return;
  }
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
  constexpr float kRound = 12582912.0F;
  const float divisor = *scale;
  for (int64_t i = 0; i < count; ++i) {
    q[i] = static_cast<int8_t>(static_cast<int32_t>((to_float(x[i]) / divisor + kRound) - kRound));
  }
}

template <class T>
void quantize_mx_row(const T* x, int64_t count, uint8_t* __restrict q, uint8_t* __restrict scales) {
  for (int64_t block = 0; block < count / kMxBlock; ++block, x += kMxBlock, q += kMxBlock) {
    const int32_t largest = largest_magnitude(x, kMxBlock);
    // The biased exponent of the magnitude is floor(log2) + 127, and E8M0 has the same bias.
    const int32_t scale = largest >= kInfinity ? kE8M0NaN : std::max((largest >> 23) - kE4M3MaxExponent, 0);
    scales[block] = static_cast<uint8_t>(scale);
    if (scale == kE8M0NaN) {
      std::fill_n(q, kMxBlock, uint8_t{0});
      continue;
    }
    const float inverse = std::bit_cast<float>(static_cast<uint32_t>(254 - scale) << 23);
    for (int64_t i = 0; i < kMxBlock; ++i) q[i] = to_e4m3(to_float(x[i]) * inverse).bits;
  }
}

template <class T>
void quantize_row(ConstRows x, int64_t i, Rows q, Rows scales) {
  if (q.dtype == DType::kI8) {
    quantize_int8_row(x.row_as<T>(i), x.cols, reinterpret_cast<int8_t*>(q.row(i)), scales.row_as<float>(i));
  } else {
    quantize_mx_row(x.row_as<T>(i), x.cols, reinterpret_cast<uint8_t*>(q.row(i)),
                    reinterpret_cast<uint8_t*>(scales.row(i)));
  }
}

void check(ConstRows x, ConstRows q, ConstRows scales) {
  if (q.dtype != DType::kI8 && q.dtype != DType::kF8E4M3) {
    throw InvalidArgument(cat("quantised rows are I8 or F8_E4M3, not ", name(q.dtype)));
  }
  if (q.dtype == DType::kF8E4M3 && q.cols % kMxBlock != 0) {
    throw InvalidArgument(cat("F8_E4M3 rows have blocks of ", kMxBlock, " elements; ", q.cols, " is no multiple"));
  }
  const ScaleShape shape = scale_shape(q.dtype, q.cols);
  if (x.rows != q.rows || x.cols != q.cols || scales.rows != q.rows || scales.cols != shape.cols ||
      scales.dtype != shape.dtype) {
    throw InvalidArgument(cat("quantised rows: x [", x.rows, ", ", x.cols, "], q ", name(q.dtype), " [", q.rows, ", ",
                              q.cols, "], scales ", name(scales.dtype), " [", scales.rows, ", ", scales.cols, "]"));
  }
}

}  // namespace

ScaleShape scale_shape(DType dtype, int64_t cols) {
  if (dtype == DType::kI8) return {1, DType::kF32};
  if (dtype == DType::kF8E4M3) return {cols / kMxBlock, DType::kF8E8M0};
  return {};
}

void quantize_rows(ConstRows x, Rows q, Rows scales) {
  check(x, q, scales);
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) {
    throw InvalidArgument(cat("rows to quantise are F32 or BF16, not ", name(x.dtype)));
  }
  for (int64_t i = 0; i < x.rows; ++i) {
    if (x.dtype == DType::kF32) {
      quantize_row<float>(x, i, q, scales);
    } else {
      quantize_row<bf16_t>(x, i, q, scales);
    }
  }
}

void dequantize_rows(ConstRows q, ConstRows scales, Rows x) {
  check(x, q, scales);
  for (int64_t i = 0; i < q.rows; ++i) {
    float* to = x.row_as<float>(i);
    const std::byte* from = q.row(i);
    for (int64_t h = 0; h < q.cols; ++h) {
      if (q.dtype == DType::kI8) {
        to[h] = static_cast<float>(static_cast<int8_t>(from[h])) * *scales.row_as<float>(i);
      } else {
        const auto scale = static_cast<uint8_t>(scales.row(i)[h / kMxBlock]);
        to[h] = to_float(e4m3_t{static_cast<uint8_t>(from[h])}) * to_float(e8m0_t{scale});
      }
    }
  }
}

}  // namespace trimtab
