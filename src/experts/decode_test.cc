// SPDX-License-Identifier: Apache-2.0
// Every code with scales of every size through the kernels of every instruction set, read off one
// by one: rows with a single element that is not 0.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/cat.h"
#include "experts/test_formats.h"
#include "experts/test_mlp.h"

namespace trimtab::test {
namespace {

constexpr int64_t kOutputs = 19;  // a panel and a rest, or less than a panel

// A matrix of one byte an element, or nibble; rows begin with another code each, so that every code
// meets every scale.
struct Codes {
  Codes(DType dtype, int64_t block, const std::vector<std::byte>& scale_bytes, DType scale_dtype,
        int64_t num_scales)
      : cols(block * num_scales), scales(scale_bytes) {
    const int64_t count = 1 << bits(dtype);
    for (int64_t i = 0; i < kOutputs; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        auto code = static_cast<unsigned>((i * 32 + j % block) % count);
        if (dtype == DType::kF8E4M3 && (code & 0x7fU) == 0x7fU) code = 0;
        if (bits(dtype) == 8) {
          bytes.push_back(static_cast<std::byte>(code));
        } else if (j % 2 == 0) {
          bytes.push_back(static_cast<std::byte>(code));
        } else {
          bytes.back() |= static_cast<std::byte>(code << 4);
        }
      }
    }
    source = {bytes.data(),
              dtype,
              kOutputs,
              cols,
              cols,
              1,
              {scales.data(), scale_dtype, kOutputs, block, 0, 1}};
  }

  int64_t cols;
  std::vector<std::byte> bytes, scales;
  MatrixSource source;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto* p = reinterpret_cast<const std::byte*>(values.data());
  return {p, p + values.size() * sizeof(T)};
}

class DecodeTest : public EachIsa {
 protected:
  // y[j, i] = x times weight (i, j), for each single one: with many rows, through unpacked panels,
  // and with few.
  void check(const Codes& codes, WeightFormat format, float x, bool flushes) const {
    const MatrixSource& down = codes.source;
    const std::vector<float> zeros(static_cast<size_t>(down.rows * down.cols));
    const MatrixSource nothing = {reinterpret_cast<const std::byte*>(zeros.data()),
                                  DType::kF32,
                                  down.cols,
                                  down.rows,
                                  down.rows,
                                  1,
                                  {}};
    const Mlp mlp({nothing, nothing, down, {}, {}, {}}, {}, format, kernels());
    TestRows act(down.cols, down.cols, DType::kBF16), y(down.cols, down.rows, DType::kF32);
    for (int64_t j = 0; j < down.cols; ++j) {
      for (int64_t k = 0; k < down.cols; ++k) act.set(j, k, j == k ? x : 0.0F);
    }
    Team team(1);
    trimtab::test::down(mlp, act.view(), y.view(), team);
    for (int64_t j = 0; j < down.cols; ++j) {
      for (int64_t i = 0; i < down.rows; ++i) {
        float want = down.at(i, j) * x;
        const bool subnormal = std::abs(want) < 0x1p-126F;
        if (subnormal && flushes) want = 0;
        if (subnormal && y.at(j, i) == 0.0F) continue;  // some instructions count subnormals as 0
        ASSERT_EQ(y.at(j, i), want) << i << " " << j;
      }
    }
    for (int64_t first = 0; first < down.cols; first += 5) {
      const int64_t m = std::min<int64_t>(5, down.cols - first);
      TestRows few(m, down.rows, DType::kF32);
      trimtab::test::down(mlp, act.view().slice(first, m), few.view(), team);
      for (int64_t r = 0; r < m; ++r)
        ASSERT_EQ(few.row_bits(r), y.row_bits(first + r)) << first + r;
    }
  }
};

TRIMTAB_FOR_EACH_ISA(DecodeTest);

// M6: microscaling formats (MXFP8 weights and rows, MXFP4 weights) and FP8 weights in 128 x 128
//     blocks.
TEST_P(DecodeTest, EveryE4M3WithPowersOfTwo) {
  const std::vector<uint8_t> scales = {0,  1,  2,   3,   4,   5,   6,   7,   8,   9,   10,  11,
                                       12, 60, 119, 120, 126, 127, 128, 133, 134, 135, 200, 246};
  const Codes codes(DType::kF8E4M3, 32, bytes_of(scales), DType::kF8E8M0, std::ssize(scales));
  check(codes, Scheme::kMXFP8, 1.0F, true);
}

TEST_P(DecodeTest, EveryE4M3WithScalesThatAreNoPowersOfTwo) {
  const std::vector<float> scales = {0.0F, 0x1p-140F, 1e-38F, 1e-30F, 0.0123F,
                                     1.0F, 255.9F,    300.0F, 1e10F,  0x1.2p119F};
  const Codes codes(DType::kF8E4M3, 128, bytes_of(scales), DType::kF32, std::ssize(scales));
  check(codes, Scheme::kFP8, 1.0F, false);
}

TEST_P(DecodeTest, EveryE2M1WithPowersOfTwo) {
  const std::vector<uint8_t> scales = {0, 1, 2, 3, 60, 119, 126, 127, 128, 129, 134, 200, 245, 246};
  const Codes codes(DType::kF4, 32, bytes_of(scales), DType::kF8E8M0, std::ssize(scales));
  check(codes, Scheme::kMXFP4, 1.0F, true);
}

// Of 127 the scale is 1, so the products are exact.
TEST_P(DecodeTest, EveryNibbleWithEveryZeroPoint) {
  Codes codes(DType::kU4, 32, bytes_of(std::vector<float>(16, 0x1p-3F)), DType::kF32, 16);
  check(codes, {Scheme::kW4A8, 32}, 127.0F, false);
  const std::vector<uint8_t> zeros = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
  codes.source.quantization.zeros = reinterpret_cast<const std::byte*>(zeros.data());
  check(codes, {Scheme::kW4A8, 32}, 127.0F, false);
  check(codes, {Scheme::kW4A16, 32}, 1.0F, false);
  codes.source.quantization.zeros = nullptr;
  check(codes, {Scheme::kW4A16, 32}, -3.0F, false);
}

TEST_P(DecodeTest, EveryByteWithExtremeZeroPoints) {
  Codes codes(DType::kI8, 256, bytes_of(std::vector<float>{0x1p-3F}), DType::kF32, 1);
  check(codes, Scheme::kW8A8, 127.0F, false);
  check(codes, Scheme::kW8A16, 1.0F, false);
  for (const int8_t zero : std::initializer_list<int8_t>{-128, -1, 127}) {
    codes.source.quantization.zeros = reinterpret_cast<const std::byte*>(&zero);
    check(codes, Scheme::kW8A8, 127.0F, false);
    check(codes, Scheme::kW8A16, -3.0F, false);
  }
}

// The largest sums that there can be, of either sign, over the most inputs: exact in 32 bits.
TEST_P(DecodeTest, TheLargestInt8SumsDoNotOverflow) {
  constexpr int64_t kInputs = 65536;
  const float scale = 1.0F;
  for (const auto& [code, zero] :
       std::initializer_list<std::pair<int8_t, int8_t>>{{127, -128}, {-128, 127}}) {
    const std::vector<int8_t> bytes(kInputs, code);
    MatrixSource down = {
        reinterpret_cast<const std::byte*>(bytes.data()), DType::kI8, 1, kInputs, kInputs, 1, {}};
    down.quantization = {reinterpret_cast<const std::byte*>(&scale), DType::kF32, 1, kInputs};
    down.quantization.zeros = reinterpret_cast<const std::byte*>(&zero);
    const std::vector<float> zeros(kInputs);
    const MatrixSource nothing = {
        reinterpret_cast<const std::byte*>(zeros.data()), DType::kF32, kInputs, 1, 1, 1, {}};
    const Mlp mlp({nothing, nothing, down, {}, {}, {}}, {}, Scheme::kW8A8, kernels());
    TestRows act(1, kInputs, DType::kBF16), y(1, 1, DType::kF32);
    for (int64_t k = 0; k < kInputs; ++k) act.set(0, k, 127.0F);
    Team team(1);
    trimtab::test::down(mlp, act.view(), y.view(), team);
    EXPECT_EQ(y.at(0, 0), static_cast<float>((code - zero) * 127.0 * kInputs));
  }
}

}  // namespace
}  // namespace trimtab::test
