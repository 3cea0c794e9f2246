// SPDX-License-Identifier: Apache-2.0
// Weights as a checkpoint has them: views of matrices and vectors of any element type, quantised
// ones included, that packing reads from. Whoever made the bytes keeps them alive until the weights
// are packed. Data need not be aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

  // The zero points, of the elements' own type, kI8, kU8 or kU4. Null: the zero is 8 for kU4, 128
  // for kU8 and 0 for all others. Block (b, c) has its zero point at zeros[b / n * zero_row_stride
  // + c * zero_col_stride + b % n] (in zero points), where n is zero_rows_per_word: 1, or more
  // where rows share a 32-bit word, as in compressed-tensors.
  const std::byte* zeros = nullptr;
  int64_t zero_row_stride = 0, zero_col_stride = 1;
  int64_t zero_rows_per_word = 1;
  int zero_offset = 0;  // added to what zeros holds: GPTQ stores zero points less 1

  // Columns in any order of blocks, as g_idx of GPTQ has it: the block of each column, int32
  // [cols]. Null: column j is of block j / block_cols.
  const std::byte* column_blocks = nullptr;
};

// A matrix: f32, bf16, f16, or quantised: kI8, kU8, kF8E4M3, kF4 (E2M1), kU4. Strides let
// transposed and interleaved forms be read in place: element (i, j) is data[index(i, j)].
struct MatrixSource {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 1;
  Quantization quantization = {};
  // The inputs of an output that stand side by side in a 32-bit word though col_stride leads to the
  // next word, as in GPTQ: 8 of kU4, 4 of kU8.
  int64_t cols_per_word = 1;
  // Of every eight rows the even ones come first, as in the words of AWQ; their zero points too.
  bool even_rows_first = false;

  bool is_quantised() const { return quantization.scales != nullptr; }
  // Where row i stands among the rows.
  int64_t place_of_row(int64_t i) const {
    return even_rows_first ? i / 8 * 8 + i % 2 * 4 + i % 8 / 2 : i;
  }
  int64_t index(int64_t i, int64_t j) const {  // in elements
    return place_of_row(i) * row_stride + j / cols_per_word * col_stride + j % cols_per_word;
  }
  float at(int64_t i, int64_t j) const;        // the value of an element; slow
  int64_t block_of_column(int64_t j) const;    // c of the block (b, c) that has column j
  float scale(int64_t b, int64_t c) const;     // the scale of block (b, c); 1 when not quantised
  int zero_point(int64_t b, int64_t c) const;  // the zero point of block (b, c)
};

// The columns in the order of their blocks, where column_blocks has another order and every block
// has block_cols of them (the last one what is left), as desc_act of GPTQ leaves them. Else empty.
std::vector<int32_t> columns_by_block(const MatrixSource& source);

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
  // What rows are divided by before they are rounded to the format's 8 bits, where a checkpoint
  // brings one scale for all rows (static scales): those that meet gate and up, and those that meet
  // down. 0: rows have scales of their own. kW8A8, kW4A8 and kFP8 use them; other formats round
  // rows as they always do.
  float a1_scale = 0, a2_scale = 0;
};

// Reads the values of a row's elements: all of them, or [begin, end), with the bits that at()
// gives. Takes any source that check_source() takes; it is fast where col_stride is 1.
void read_row(const MatrixSource& source, int64_t row, float* out);
void read_row(const MatrixSource& source, int64_t row, int64_t begin, int64_t end, float* out);
// Reads the rows [first, first + out.rows) into out: f32 [.., cols].
void read_rows(const MatrixSource& source, int64_t first, Rows out);

}  // namespace trimtab
