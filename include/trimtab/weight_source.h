// SPDX-License-Identifier: Apache-2.0
// Weights as a checkpoint has them: views of matrices and vectors of any element type, quantised
// ones included, that packing reads from. Whoever made the bytes keeps them alive until the weights
// are packed. Data need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trimtab/tensor.h"

namespace trimtab {

// The values of the elements of a quantised matrix are (q - zero) * scale, with one scale, and
// where there are zero points one of them, for every block of block_rows x block_cols elements.
// Blocks at the right and at the bottom may be cut off. Block (b, c) has its scale at scales[b *
// scale_row_stride + c * scale_col_stride] (in scales).
struct Quantization {
  const std::byte* scales = nullptr;  // null: the matrix is not quantised
  DType scale_dtype = DType::kF32;    // f32, bf16, f16 or E8M0
  int64_t block_rows = 1, block_cols = 1;
  int64_t scale_row_stride = 0, scale_col_stride = 1;

  // The zero points, of the elements' own type, kI8 or kU4. Null: the zero is 8 for kU4 and 0 for
  // all others. Block (b, c) has its zero point at zeros[b / n * zero_row_stride + c *
  // zero_col_stride + b % n] (in zero points), where n is zero_rows_per_word: 1, or 8 where eight
  // rows share a 32-bit word, as in compressed-tensors.
  const std::byte* zeros = nullptr;
  int64_t zero_row_stride = 0, zero_col_stride = 1;
  int64_t zero_rows_per_word = 1;
};

// A matrix: f32, bf16, f16, or quantised: kI8, kF8E4M3, kF4 (E2M1), kU4. Strides let transposed and
// interleaved forms be read in place: element (i, j) is data[i * row_stride + j * col_stride] (in
// elements).
struct MatrixSource {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 1;
  Quantization quantization = {};

  bool is_quantised() const { return quantization.scales != nullptr; }
  float at(int64_t i, int64_t j) const;        // the value of an element; slow
  float scale(int64_t b, int64_t c) const;     // the scale of block (b, c); 1 when not quantised
  int zero_point(int64_t b, int64_t c) const;  // the zero point of block (b, c)
};

struct VectorSource {
  const std::byte* data = nullptr;  // null: no bias
  DType dtype = DType::kF32;        // f32, bf16 or f16
  int64_t size = 0;
  int64_t stride = 1;
  float at(int64_t i) const;
};

// One gated MLP.
struct MlpSource {
  MatrixSource gate, up;  // [intermediate, hidden]
  MatrixSource down;      // [hidden, intermediate]
  VectorSource gate_bias, up_bias, down_bias;
};

// Reads the values of a row's elements: all of them, or [begin, end), with the bits that at()
// gives. Takes any source that check_source() takes; it is fast where col_stride is 1.
void read_row(const MatrixSource& source, int64_t row, float* out);
void read_row(const MatrixSource& source, int64_t row, int64_t begin, int64_t end, float* out);
// Reads the rows [first, first + out.rows) into out: f32 [.., cols].
void read_rows(const MatrixSource& source, int64_t first, Rows out);

}  // namespace trimtab
