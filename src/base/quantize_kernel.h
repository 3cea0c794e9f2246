// SPDX-License-Identifier: Apache-2.0
// Quantises one row with plain loops over plain arrays, which every instruction set vectorises in
// its own way with the same bits. This file is compiled once for each of them: it includes nothing
// but fixed-size integers, and everything is local to the including file (see experts/gemm.h). bf16
// elements are uint16_t here. The definitions are in quantize_rows.h.
#pragma once

#include <cstdint>

namespace trimtab {
namespace {

constexpr int kQuantizeBlock = 32;  // elements of an MX block
constexpr int kE8M0NaN = 255;

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline float widened(float x) {
  return x;
}
inline float widened(uint16_t x) {
  return bits_as<float>(uint32_t{x} << 16);
}

// The bits of the largest magnitude: non-negative floats order as their bits do, and integers have
// a maximum that vectorises. 0x7f800000 or more: the row has an infinity or a NaN.
template <class T>
int32_t largest_magnitude(const T* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = bits_as<int32_t>(widened(x[i])) & 0x7fffffff;
    largest = largest > magnitude ? largest : magnitude;
  }
  return largest;
}

template <class T>
void quantize_int8_row(const T* x, int64_t count, int8_t* __restrict q, float* scale) {
  const int32_t largest = largest_magnitude(x, count);
  const bool finite = largest < 0x7f800000;
  const float step = bits_as<float>(largest) / 127.0F;
  if (!finite || bits_as<int32_t>(step) < 0x00800000) {
    for (int64_t i = 0; i < count; ++i) q[i] = 0;
    *scale = finite ? 0.0F : bits_as<float>(0x7fc00000);
    return;
  }
  *scale = step;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
  constexpr float kRound = 12582912.0F;
  // A multiplication for each element is several times as fast as a division.
  const float inverse = 127.0F / bits_as<float>(largest);
  for (int64_t i = 0; i < count; ++i) {
    q[i] = static_cast<int8_t>(static_cast<int32_t>((widened(x[i]) * inverse + kRound) - kRound));
  }
}

// By a scale that is given: to nearest, ties to even, within [-128, 127]. False: the row has a NaN,
// and all codes are 0.
template <class T>
bool quantize_int8_row_by(const T* x, int64_t count, float scale, int8_t* __restrict q) {
  if (largest_magnitude(x, count) > 0x7f800000) {
    for (int64_t i = 0; i < count; ++i) q[i] = 0;
    return false;
  }
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23, as above
  for (int64_t i = 0; i < count; ++i) {
    const float y = widened(x[i]) / scale;
    const float low = y < -128.0F ? -128.0F : y;
    const float within = low > 127.0F ? 127.0F : low;
    q[i] = static_cast<int8_t>(static_cast<int32_t>((within + kRound) - kRound));
  }
  return true;
}

// The e8m0 scale of a block: the biased exponent of the magnitude is floor(log2) + 127, and e8m0
// has the same bias.
inline int mx_scale(int32_t largest) {
  if (largest >= 0x7f800000) return kE8M0NaN;
  const int scale = (largest >> 23) - 8;
  return scale < 0 ? 0 : scale;
}

// The e4m3 code of the magnitude of x, |x| < 2^9: to nearest, ties to even, at most 448.
inline uint32_t e4m3_magnitude(float x) {
  const uint32_t magnitude = bits_as<uint32_t>(x) & 0x7fffffffU;
  // From 2^-6 on: 3 bits of mantissa stay, the bias goes from 127 to 7. Below: multiples of 2^-9,
  // the unit of 2^14.
  const uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 16384.0F) - 0x46800000U;
  const uint32_t code = magnitude >= 0x3c800000U ? normal : subnormal;
  return code < 0x7eU ? code : 0x7eU;
}

// q and scales of whole blocks.
template <class T>
void quantize_mx_row(const T* x, int64_t count, uint8_t* __restrict q, uint8_t* __restrict scales) {
  for (int64_t block = 0; block < count / kQuantizeBlock;
       ++block, x += kQuantizeBlock, q += kQuantizeBlock) {
    const int scale = mx_scale(largest_magnitude(x, kQuantizeBlock));
    scales[block] = static_cast<uint8_t>(scale);
    // A block with a NaN: all codes are 0. 254 - 255 would be no exponent.
    const float inverse = scale == kE8M0NaN ? 0.0F : bits_as<float>((254 - scale) << 23);
    for (int i = 0; i < kQuantizeBlock; ++i) {
      const float y = widened(x[i]) * inverse;
      const uint32_t code = e4m3_magnitude(y) | ((bits_as<uint32_t>(y) >> 24) & 0x80U);
      q[i] = scale == kE8M0NaN ? uint8_t{0} : static_cast<uint8_t>(code);
    }
  }
}

// What an e4m3 row stands for, in bf16. Exact, but that results below the normal range are 0.
inline void dequantize_mx_row(const uint8_t* q, const uint8_t* scales, int64_t count,
                              uint16_t* __restrict y) noexcept {
  for (int64_t block = 0; block < count / kQuantizeBlock;
       ++block, q += kQuantizeBlock, y += kQuantizeBlock) {
    const int scale = scales[block];
    const float power =
        bits_as<float>(scale == kE8M0NaN ? 0x7fc00000 : (scale == 0 ? 0x00400000 : scale << 23));
    for (int i = 0; i < kQuantizeBlock; ++i) {
      // With its fields in the place of a float's it is 2^-120 of the value: the exponent's bias is
      // 7, not 127.
      const uint32_t code = q[i];
      const float value = bits_as<float>((code & 0x7fU) << 20) * 0x1p120F * power;
      const uint32_t bits = bits_as<uint32_t>(value);
      y[i] = static_cast<uint16_t>((bits < 0x00800000U ? 0U : bits >> 16) | (code & 0x80U) << 8);
    }
  }
}

// x / scale rounded to e4m3, at most 448 in magnitude, in bf16, where it is exact. NaN stays NaN.
template <class T>
void round_e4m3_row(const T* x, int64_t count, float scale, uint16_t* __restrict y) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = widened(x[i]) / scale;
    const uint32_t sign = bits_as<uint32_t>(value) >> 31;
    const float low = value < -448.0F ? -448.0F : value;
    const uint32_t code = e4m3_magnitude(low > 448.0F ? 448.0F : low);
    const uint32_t bits = bits_as<uint32_t>(bits_as<float>(code << 20) * 0x1p120F) >> 16;
    y[i] = static_cast<uint16_t>(value == value ? bits | sign << 15 : 0x7fc0U);
  }
}

// Sums of groups of a row of int8.
inline void sum_groups(const int8_t* q, int64_t groups, int64_t group, int32_t* sums) noexcept {
  for (int64_t g = 0; g < groups; ++g, q += group) {
    int32_t sum = 0;
    for (int64_t i = 0; i < group; ++i) sum += q[i];
    sums[g] = sum;
  }
}

}  // namespace
}  // namespace trimtab
