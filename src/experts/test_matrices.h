// SPDX-License-Identifier: Apache-2.0
// Random matrices for the tests of this room, in every form that a checkpoint can have, and rows to
// multiply them with.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "experts/isa.h"
#include "trimtab/experts.h"

namespace trimtab::test {

// The unit roundoff of f32 and of bf16.
constexpr double kUnit = 0x1p-24;
constexpr double kUnitBF16 = 0x1p-8;

enum class Form {
  kDense,
  kPadded,       // rows further apart than their length
  kTransposed,   // stored as [cols, rows]
  kInterleaved,  // gpt-oss: every second row of a transposed matrix
};

// Truncates; what is below the normal range becomes 0. Any f16 will do.
inline f16_t f16_truncated(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (u >> 23) & 0xffU;
  if (exponent < 113 || exponent > 142) return {static_cast<uint16_t>((u >> 16) & 0x8000U)};
  return {static_cast<uint16_t>(((u >> 16) & 0x8000U) | ((exponent - 112) << 10) |
                                ((u >> 13) & 0x3ffU))};
}

// Owns what a source points to. The data always starts at an odd address.
struct TestMatrix {
  std::vector<std::byte> bytes;
  MatrixSource source;
};

inline void put(std::byte* to, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    const uint16_t half = dtype == DType::kBF16 ? to_bf16(value).bits : f16_truncated(value).bits;
    std::memcpy(to, &half, sizeof(half));
  }
}

inline TestMatrix make_matrix(int64_t rows, int64_t cols, DType dtype, Form form,
                              std::mt19937& random) {
  TestMatrix m;
  int64_t row_stride = cols, col_stride = 1;
  if (form == Form::kPadded) row_stride = cols + 3;
  if (form == Form::kTransposed) row_stride = 1, col_stride = rows;
  if (form == Form::kInterleaved) row_stride = 2, col_stride = 2 * rows;
  const int64_t last = (rows - 1) * row_stride + (cols - 1) * col_stride;
  const size_t size = shape_bytes(dtype, 1);
  m.bytes.resize(1 + static_cast<size_t>(last + 1) * size);
  m.source = {m.bytes.data() + 1, dtype, rows, cols, row_stride, col_stride};
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      put(m.bytes.data() + 1 + static_cast<size_t>(i * row_stride + j * col_stride) * size, dtype,
          normal(random));
    }
  }
  return m;
}

struct TestVector {
  std::vector<std::byte> bytes;
  VectorSource source;
};

inline TestVector make_vector(int64_t size, DType dtype, int64_t stride, std::mt19937& random) {
  TestMatrix m = make_matrix(1, size * stride, dtype, Form::kDense, random);
  TestVector v;
  v.bytes = std::move(m.bytes);
  v.source = {v.bytes.data() + 1, dtype, size, stride};
  return v;
}

// What a source element is once stored in `dtype`.
inline double stored(float value, DType dtype) {
  return static_cast<double>(dtype == DType::kBF16 ? to_float(to_bf16(value)) : value);
}

// Rows that own their memory: `gap` elements lie between them, filled with a pattern that must not
// be read or written (NaN in every type). The last row ends where the memory ends.
class TestRows {
 public:
  TestRows(int64_t rows, int64_t cols, DType dtype, int64_t gap = 0)
      : size_(shape_bytes(dtype, 1)),
        bytes_(rows == 0 ? 0 : static_cast<size_t>(rows * (cols + gap) - gap) * size_,
               std::byte{0xff}),
        view_(bytes_.data(), rows, cols, cols + gap, dtype) {}

  void randomise(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < view_.rows; ++i) {
      for (int64_t j = 0; j < view_.cols; ++j) set(i, j, normal(random));
    }
  }
  void set(int64_t i, int64_t j, float value) {
    put(view_.row(i) + static_cast<size_t>(j) * size_, view_.dtype, value);
  }
  float at(int64_t i, int64_t j) const {
    return MatrixSource{view_.data, view_.dtype, view_.rows, view_.cols, view_.stride, 1}.at(i, j);
  }
  // Bitwise, without the gaps.
  std::string row_bits(int64_t i) const {
    return {reinterpret_cast<const char*>(view_.row(i)), static_cast<size_t>(view_.cols) * size_};
  }
  bool gaps_untouched() const {
    for (int64_t i = 0; i + 1 < view_.rows; ++i) {
      for (const std::byte* p = view_.row(i) + view_.row_bytes(); p < view_.row(i + 1); ++p) {
        if (*p != std::byte{0xff}) return false;
      }
    }
    return true;
  }
  Rows view() const { return view_; }

 private:
  size_t size_;
  std::vector<std::byte> bytes_;
  Rows view_;
};

// The error of a sum of k products in f32 with its bias, in any order, fused or not: at most (k +
// 2) roundings of partial sums that are no larger than the sum of magnitudes (Higham, Accuracy and
// Stability, 3.1), up to second order.
inline double sum_bound(int64_t k, double magnitudes) {
  return 1.001 * static_cast<double>(k + 2) * kUnit * magnitudes;
}

// A test for every instruction set that this machine has.
class EachIsa : public testing::TestWithParam<const GemmKernels*> {
 protected:
  const GemmKernels* kernels() const { return GetParam(); }
};

inline std::string isa_name(const testing::TestParamInfo<const GemmKernels*>& info) {
  return info.param->isa;
}

#define TRIMTAB_FOR_EACH_ISA(suite)                                                       \
  INSTANTIATE_TEST_SUITE_P(                                                               \
      , suite, testing::ValuesIn(available_kernels().begin(), available_kernels().end()), \
      isa_name)

}  // namespace trimtab::test
