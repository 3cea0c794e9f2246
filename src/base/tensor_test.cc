// SPDX-License-Identifier: Apache-2.0
#include "trimtab/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace trimtab {
namespace {

TEST(DTypes, NamesAndBitsAreThoseOfSafetensors) {
  const struct {
    DType type;
    const char* text;
    int width;
  } all[] = {{DType::kBool, "BOOL", 8},      {DType::kU8, "U8", 8},
             {DType::kI8, "I8", 8},          {DType::kI16, "I16", 16},
             {DType::kU16, "U16", 16},       {DType::kF16, "F16", 16},
             {DType::kBF16, "BF16", 16},     {DType::kI32, "I32", 32},
             {DType::kU32, "U32", 32},       {DType::kF32, "F32", 32},
             {DType::kI64, "I64", 64},       {DType::kU64, "U64", 64},
             {DType::kF64, "F64", 64},       {DType::kF8E4M3, "F8_E4M3", 8},
             {DType::kF8E5M2, "F8_E5M2", 8}, {DType::kF8E8M0, "F8_E8M0", 8},
             {DType::kF4, "F4", 4},          {DType::kU4, "U4", 4}};
  for (const auto& [type, text, width] : all) {
    EXPECT_EQ(name(type), text);
    EXPECT_EQ(bits(type), width) << text;
  }
}

// The value of a binary float with these field widths, from the definition.
double value_of(uint32_t pattern, int exponent_bits, int mantissa_bits) {
  const int mantissa = static_cast<int>(pattern & ((1U << mantissa_bits) - 1));
  const int exponent = static_cast<int>((pattern >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const double sign = (pattern >> (exponent_bits + mantissa_bits)) & 1U ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double fraction = mantissa / static_cast<double>(1 << mantissa_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * fraction * std::pow(2.0, 1 - bias);
  return sign * (1.0 + fraction) * std::pow(2.0, exponent - bias);
}

void expect_same(float got, double want, uint32_t pattern) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << pattern;
  } else {
    ASSERT_EQ(static_cast<double>(got), want) << pattern;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << pattern;
  }
}

TEST(Conversions, EveryF16) {
  for (uint32_t u = 0; u < 65536; ++u)
    expect_same(to_float(f16_t{static_cast<uint16_t>(u)}), value_of(u, 5, 10), u);
}

// E4M3 is a binary float whose greatest exponent is one like the others, but for the code of all
// ones.
TEST(Conversions, EveryE4M3) {
  for (uint32_t u = 0; u < 256; ++u) {
    const uint32_t magnitude = u & 0x7f;
    double want = magnitude < 8 ? magnitude * 0x1p-9
                                : (8 + magnitude % 8) * std::pow(2.0, magnitude / 8 - 10.0);
    if (magnitude == 0x7f) want = std::nan("");
    expect_same(to_float(e4m3_t{static_cast<uint8_t>(u)}), u < 128 ? want : -want, u);
  }
}

TEST(Conversions, EveryE2M1) {
  for (uint32_t u = 0; u < 16; ++u) {
    const uint32_t magnitude = u & 7;
    const double want =
        magnitude < 2 ? magnitude * 0.5 : (2 + magnitude % 2) * std::pow(2.0, magnitude / 2 - 2.0);
    expect_same(to_float(e2m1_t{static_cast<uint8_t>(u)}), u < 8 ? want : -want, u);
  }
}

TEST(Conversions, EveryE8M0) {
  for (uint32_t u = 0; u < 255; ++u) {
    expect_same(to_float(e8m0_t{static_cast<uint8_t>(u)}), std::pow(2.0, static_cast<int>(u) - 127),
                u);
  }
  EXPECT_TRUE(std::isnan(to_float(e8m0_t{255})));
}

TEST(Conversions, EveryBf16ThereAndBack) {
  for (uint32_t u = 0; u < 65536; ++u) {
    const float x = to_float(bf16_t{static_cast<uint16_t>(u)});
    expect_same(x, value_of(u, 8, 7), u);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(to_bf16(x)))) << u;
    } else {
      ASSERT_EQ(to_bf16(x).bits, u);
    }
  }
}

// Between every bf16 and the next one above: the middle goes to the even one, its neighbours to the
// nearer one.
TEST(Conversions, Bf16RoundsToNearestTiesToEven) {
  for (uint32_t u = 0; u < 0x7f80; ++u) {
    for (const uint32_t sign : {0U, 0x8000U}) {
      const uint32_t low = u | sign;
      const uint32_t high = (u + 1) | sign;
      const float middle = std::bit_cast<float>((low << 16) | 0x8000U);
      const float below = std::bit_cast<float>((low << 16) | 0x7fffU);
      const float above = std::bit_cast<float>((low << 16) | 0x8001U);
      // 0x7f7f is the largest finite one; "the next" is infinity, as IEEE rounding has it.
      ASSERT_EQ(to_bf16(middle).bits, u % 2 == 0 ? low : high) << low;
      ASSERT_EQ(to_bf16(below).bits, low);
      ASSERT_EQ(to_bf16(above).bits, high);
    }
  }
}

TEST(Conversions, NanStaysNanWhicheverBitsItHas) {
  for (const uint32_t payload :
       {0x7f800001U, 0x7fffffffU, 0xff800001U, 0xffffffffU, 0x7fc00000U, 0x7f80ffffU}) {
    const bf16_t got = to_bf16(std::bit_cast<float>(payload));
    EXPECT_TRUE(std::isnan(to_float(got))) << payload;
    EXPECT_EQ(got.bits >> 15, payload >> 31) << payload;
  }
}

TEST(RowViews, StridesSlicesAndBytes) {
  std::vector<float> data(12);
  for (size_t i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  Rows rows(data.data(), 3, 4);
  EXPECT_EQ(rows.dtype, DType::kF32);
  EXPECT_EQ(rows.row_bytes(), 16U);
  EXPECT_EQ(rows.row_as<float>(2)[3], 11.0F);
  rows.cols = 2;
  EXPECT_EQ(rows.row_bytes(), 8U);
  const ConstRows tail = rows.slice(1, 2);
  EXPECT_EQ(tail.rows, 2);
  EXPECT_EQ(tail.row_as<float>(0)[0], 4.0F);
  EXPECT_EQ(tail.row_as<float>(1)[1], 9.0F);
  EXPECT_EQ(reinterpret_cast<const float*>(tail.row(1))[0], 8.0F);

  Rows packed;
  packed.cols = 6;
  packed.dtype = DType::kF4;
  EXPECT_EQ(packed.row_bytes(), 3U);
}

TEST(Buffers, AlignedZeroedMovable) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{5} << 20}) {
    Buffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
    buffer.as<uint8_t>()[bytes - 1] = 7;
    const std::byte* where = buffer.data();
    const Buffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), where);
    EXPECT_EQ(moved.as<uint8_t>()[bytes - 1], 7);
  }
}

TEST(Buffers, OutlinesHaveSizesAndNoMemory) {
  BufferArena arena = BufferArena::of_outlines();
  EXPECT_FALSE(arena.has_memory());
  EXPECT_TRUE(BufferArena().has_memory());
  Buffer a = arena.take(size_t{1} << 50);
  EXPECT_EQ(a.bytes(), size_t{1} << 50);
  EXPECT_EQ(a.data(), nullptr);
  Buffer b = std::move(a);
  EXPECT_EQ(a.bytes(), 0U);
  EXPECT_EQ(b.bytes(), size_t{1} << 50);
  b = Buffer(64);
  EXPECT_EQ(b.bytes(), 64U);
  EXPECT_NE(b.data(), nullptr);
}

TEST(Buffers, EmptyAndImpossible) {
  EXPECT_EQ(Buffer().data(), nullptr);
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer(0).bytes(), 0U);
  EXPECT_THROW(Buffer{std::numeric_limits<size_t>::max()}, std::bad_alloc);
}

}  // namespace
}  // namespace trimtab
