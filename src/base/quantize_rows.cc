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
constexpr uint8_t kE4M3Max = 0x7e;  // 448
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

// |x| < 2^9, to nearest, ties to even, saturating.
inline uint8_t to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = u & kMagnitude;
  // From 2^-6 on: 3 bits of mantissa stay, the bias goes from 127 to 7. Below: multiples of 2^-9, the unit of 2^14.
  const uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0F) - 0x46800000U;
  const uint32_t code = magnitude >= 0x3c800000U ? normal : subnormal;
  return static_cast<uint8_t>(std::min<uint32_t>(code, kE4M3Max) | ((u >> 24) & 0x80U));
}

float from_e4m3(uint8_t code) {
  const float sign = (code & 0x80U) != 0 ? -1.0F : 1.0F;
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                               : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10));
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
    for (int64_t i = 0; i < kMxBlock; ++i) q[i] = to_e4m3(to_float(x[i]) * inverse);
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
        const float power = scale == kE8M0NaN ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, scale - 127);
        to[h] = from_e4m3(static_cast<uint8_t>(from[h])) * power;
      }
    }
  }
}

}  // namespace trimtab
