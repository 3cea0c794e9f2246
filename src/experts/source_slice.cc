// SPDX-License-Identifier: Apache-2.0
#include "experts/source_slice.h"

#include <string>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::string range(std::string_view what, const char* of, int64_t first, int64_t count) {
  return cat(what, ": the ", of, " ", first, " to ", first + count - 1);
}

void move_data(MatrixSource& part, const MatrixSource& whole, int64_t row, int64_t col,
               const std::string& text) {
  if (whole.data == nullptr) return;
  const int64_t first_bit = whole.index(row, col) * bits(whole.dtype);
  if (first_bit % 8 != 0 || col % whole.cols_per_word != 0 ||
      (whole.even_rows_first && row % 8 != 0)) {
    throw InvalidArgument(cat(text, " begin inside a byte or word"));
  }
  part.data += first_bit / 8;
}

// Moves to the zero points of a block, `elements` behind the first.
void move_zeros(MatrixSource& part, int64_t elements, const std::string& text) {
  if (part.quantization.zeros == nullptr) return;
  const int64_t zero_bits = elements * bits(part.dtype);
  if (zero_bits % 8 != 0) throw InvalidArgument(cat(text, " have zero points inside a byte"));
  part.quantization.zeros += zero_bits / 8;
}

}  // namespace

MatrixSource rows_of(const MatrixSource& whole, int64_t first, int64_t count,
                     std::string_view what) {
  MatrixSource part = whole;
  part.rows = count;
  const std::string text = range(what, "rows", first, count);
  move_data(part, whole, first, 0, text);
  if (!whole.is_quantised()) return part;
  Quantization& q = part.quantization;
  if (q.block_rows >= whole.rows) {
    q.block_rows = count;
    return part;
  }
  const int64_t block = first / q.block_rows;
  if (first % q.block_rows != 0 || block % q.zero_rows_per_word != 0)
    throw InvalidArgument(cat(text, " begin inside a block of scales"));
  q.scales += block * q.scale_row_stride * bits(q.scale_dtype) / 8;
  move_zeros(part, block / q.zero_rows_per_word * q.zero_row_stride, text);
  return part;
}

MatrixSource cols_of(const MatrixSource& whole, int64_t first, int64_t count,
                     std::string_view what) {
  MatrixSource part = whole;
  part.cols = count;
  const std::string text = range(what, "columns", first, count);
  move_data(part, whole, 0, first, text);
  if (!whole.is_quantised()) return part;
  Quantization& q = part.quantization;
  if (q.column_blocks != nullptr)
    throw InvalidArgument(cat(what, ": columns in another order can't be divided"));
  if (q.block_cols >= whole.cols) {
    q.block_cols = count;
    return part;
  }
  const int64_t block = first / q.block_cols;
  if (first % q.block_cols != 0)
    throw InvalidArgument(cat(text, " begin inside a block of scales"));
  q.scales += block * q.scale_col_stride * bits(q.scale_dtype) / 8;
  move_zeros(part, block * q.zero_col_stride, text);
  return part;
}

VectorSource slice_of(const VectorSource& whole, int64_t first, int64_t count) {
  VectorSource part = whole;
  if (whole.data == nullptr) return part;
  part.data += first * whole.stride * bits(whole.dtype) / 8;
  part.size = count;
  return part;
}

}  // namespace trimtab
