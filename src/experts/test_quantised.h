// SPDX-License-Identifier: Apache-2.0
// Random quantised matrices in the form of a checkpoint, for the tests of this room.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/cat.h"
#include "experts/test_matrices.h"
#include "trimtab/experts.h"

namespace trimtab::test {

// A quantised matrix of random codes, its scales and zero points, all at odd addresses and with
// gaps between the rows.
struct Quantised {
  Quantised(int64_t rows, int64_t cols, int64_t block_rows, int64_t block_cols, DType dtype,
            DType scale_dtype, bool with_zeros, std::mt19937& random)
      : blocks_down((rows + block_rows - 1) / block_rows),
        blocks_across((cols + block_cols - 1) / block_cols) {
    const auto fill = [&](std::vector<std::byte>& bytes, int64_t count) {
      bytes.resize(1 + static_cast<size_t>(count));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    };
    source = {nullptr, dtype, rows, cols, cols + 3, 1, {}};
    Quantization& q = source.quantization;
    q.block_rows = block_rows;
    q.block_cols = block_cols;
    fill(data, (rows * source.row_stride * bits(dtype) + 7) / 8);
    source.data = data.data() + 1;
    if (dtype == DType::kF8E4M3) {
      for (std::byte& byte : data)
        byte = (byte & std::byte{0x7f}) == std::byte{0x7f} ? std::byte{1} : byte;
    }

    q.scale_dtype = scale_dtype;
    q.scale_row_stride = blocks_across + 1;
    fill(scales, blocks_down * q.scale_row_stride * bits(scale_dtype) / 8);
    q.scales = scales.data() + 1;
    std::uniform_real_distribution<float> positive(0.25F, 4.0F);
    for (int64_t b = 0; b < blocks_down; ++b) {
      for (int64_t c = 0; c < blocks_across; ++c) {
        const int64_t index = b * q.scale_row_stride + c;
        const float scale = positive(random);
        std::byte* to = scales.data() + 1 + index;
        if (scale_dtype == DType::kF8E8M0) {
          *to = static_cast<std::byte>(120 + random() % 16);
          values.push_back(std::ldexp(1.0F, std::to_integer<int>(*to) - 127));
        } else {
          values.push_back(scale);
        }
      }
    }
    if (scale_dtype != DType::kF8E8M0) store_scales();
    if (!with_zeros) return;
    q.zero_rows_per_word = dtype == DType::kU4 ? 8 : 1;
    q.zero_row_stride = blocks_across * q.zero_rows_per_word;
    q.zero_col_stride = q.zero_rows_per_word;
    fill(zeros, (blocks_down + 7) / 8 * 8 * blocks_across);
    q.zeros = zeros.data() + 1;
  }

  // Writes `values`, which are not powers of two, and rounds them to what is stored.
  void store_scales() {
    const Quantization& q = source.quantization;
    for (int64_t b = 0; b < blocks_down; ++b) {
      for (int64_t c = 0; c < blocks_across; ++c) {
        std::byte* const to =
            scales.data() + 1 + (b * q.scale_row_stride + c) * bits(q.scale_dtype) / 8;
        float& value = values[static_cast<size_t>(b * blocks_across + c)];
        put(to, q.scale_dtype, value);
        value = q.scale_dtype == DType::kF32    ? value
                : q.scale_dtype == DType::kBF16 ? to_float(to_bf16(value))
                                                : to_float(f16_truncated(value));
      }
    }
  }

  // From the definition; codes and zero points as the two's complement or unsigned numbers that
  // they are.
  double want(int64_t i, int64_t j) const {
    const int64_t b = i / source.quantization.block_rows, c = j / source.quantization.block_cols;
    return (element(i * source.row_stride + j) - zero(b, c)) *
           double{values[static_cast<size_t>(b * blocks_across + c)]};
  }
  double element(int64_t index) const {
    const auto code =
        std::to_integer<unsigned>(data[static_cast<size_t>(1 + index * bits(source.dtype) / 8)]);
    const unsigned half = code >> (index % 2 * 4) & 15U;
    if (source.dtype == DType::kI8) return code < 128 ? code : code - 256.0;
    if (source.dtype == DType::kU4) return half;
    if (source.dtype == DType::kF4) return double{to_float(e2m1_t{static_cast<uint8_t>(half)})};
    return double{to_float(e4m3_t{static_cast<uint8_t>(code)})};
  }
  double zero(int64_t b, int64_t c) const {
    if (zeros.empty()) return source.dtype == DType::kU4 ? 8 : 0;
    if (source.dtype == DType::kI8) {
      const auto code = std::to_integer<int>(zeros[static_cast<size_t>(1 + b * blocks_across + c)]);
      return code < 128 ? code : code - 256;
    }
    uint32_t word;
    std::memcpy(&word, zeros.data() + 1 + 4 * (b / 8 * blocks_across + c), sizeof(word));
    return word >> (4 * (b % 8)) & 15U;
  }

  int64_t blocks_down, blocks_across;
  std::vector<std::byte> data, scales, zeros;
  std::vector<float> values;  // of the scales
  MatrixSource source;
};

// Quantised as a format stores it, or in larger blocks: copied, never quantised again.
struct SameQuantization {
  WeightFormat format;
  DType dtype, scale_dtype;
  int64_t block_rows, block_cols;  // kWhole: all there are
  bool zeros;

  static constexpr int64_t kWhole = 0;
  Quantised matrix(int64_t rows, int64_t cols, std::mt19937& random) const {
    return {rows,
            cols,
            block_rows == kWhole ? rows : block_rows,
            block_cols == kWhole ? cols : block_cols,
            dtype,
            scale_dtype,
            zeros,
            random};
  }
  std::string text() const {
    return cat(name(dtype), " with ", name(scale_dtype), " scales, blocks of ", block_rows, " x ",
               block_cols, zeros ? ", zero points" : "", " as ", name(format));
  }
};

inline const SameQuantization kSameQuantizations[] = {
    {Scheme::kW8A8, DType::kI8, DType::kF32, 1, SameQuantization::kWhole, false},
    {Scheme::kW8A8, DType::kI8, DType::kBF16, 1, SameQuantization::kWhole, true},
    {Scheme::kW8A8, DType::kI8, DType::kF16, SameQuantization::kWhole, SameQuantization::kWhole,
     false},
    {Scheme::kW4A8, DType::kU4, DType::kBF16, 1, 128, false},
    {Scheme::kW4A8, DType::kU4, DType::kF16, 1, 128, true},
    {Scheme::kW4A8, DType::kU4, DType::kF32, 1, SameQuantization::kWhole, true},
    {{Scheme::kW4A8, 32}, DType::kU4, DType::kF32, 1, 32, false},
    {{Scheme::kW4A8, 32}, DType::kU4, DType::kBF16, 1, 32, true},
    {{Scheme::kW4A8, 32}, DType::kU4, DType::kF32, 1, 64, true},
    {{Scheme::kW4A8, 8}, DType::kU4, DType::kF32, 1, 8, true},
    {{Scheme::kW4A8, 0}, DType::kU4, DType::kF32, 1, SameQuantization::kWhole, true},
    {Scheme::kMXFP8, DType::kF8E4M3, DType::kF8E8M0, 1, 32, false},
    {Scheme::kMXFP8, DType::kF8E4M3, DType::kF8E8M0, 128, 128, false},
    {Scheme::kFP8, DType::kF8E4M3, DType::kF32, 128, 128, false},
    {Scheme::kFP8, DType::kF8E4M3, DType::kF8E8M0, 128, 128, false},
    {Scheme::kFP8, DType::kF8E4M3, DType::kBF16, 1, SameQuantization::kWhole, false},
    {Scheme::kMXFP4, DType::kF4, DType::kF8E8M0, 1, 32, false},
    {Scheme::kW4A16, DType::kU4, DType::kF16, 1, 128, true},
    {{Scheme::kW4A16, 32}, DType::kU4, DType::kBF16, 1, 32, false},
    {{Scheme::kW4A16, 64}, DType::kU4, DType::kF32, 1, 64, true},
    {{Scheme::kW4A16, 0}, DType::kU4, DType::kF32, 1, SameQuantization::kWhole, false},
    {{Scheme::kW4A16, 0}, DType::kU4, DType::kF32, 1, SameQuantization::kWhole, true},
    {Scheme::kW8A16, DType::kI8, DType::kBF16, 1, SameQuantization::kWhole, false},
    {Scheme::kW8A16, DType::kI8, DType::kBF16, 1, SameQuantization::kWhole, true},
    {{Scheme::kW8A16, 32}, DType::kI8, DType::kF16, 1, 32, false},
    {{Scheme::kW8A16, 128}, DType::kI8, DType::kF16, 1, 128, true},
};

}  // namespace trimtab::test
