// SPDX-License-Identifier: Apache-2.0
// Rows in 8 bits, each with scales of its own, as they travel between ranks and as quantised
// experts read them.
#pragma once

#include <cstdint>

#include "trimtab/table.h"
#include "trimtab/tensor.h"

namespace trimtab {

// Elements that share one scale in the MX formats.
constexpr int64_t kMxBlock = 32;

// |x| < 2^9, to nearest, ties to even; 448 in magnitude at most.
e4m3_t to_e4m3(float x);

// What goes with a row of a dtype: one F32 for kI8, an F8_E8M0 for each kMxBlock elements for
// kF8E4M3, else nothing.
struct ScaleShape {
  int64_t cols = 0;
  DType dtype = DType::kF32;
  size_t row_bytes() const { return shape_bytes(dtype, cols); }
};
ScaleShape scale_shape(DType dtype, int64_t cols);
// Do rows of the dtype have scales?
inline bool is_quantised(DType dtype) {
  return scale_shape(dtype, kMxBlock).cols > 0;
}

// x: F32 or BF16. q: kI8 or kF8E4M3 of the same shape; scales: [x.rows, scale_shape(q.dtype,
// x.cols)]. Throws InvalidArgument when they do not fit, and for kF8E4M3 rows that are no multiple
// of kMxBlock.
//   kI8: scale = largest magnitude / 127, q = x * (127 / largest magnitude), rounded to nearest,
//   ties to even. A row of zeros (or one whose scale is below the normal f32) is q = 0, scale = 0.
//   A row with a NaN or an infinity is q = 0, scale = NaN, so that whatever is computed from it is
//   NaN. kF8E4M3: per block, scale = 2^(floor(log2(largest magnitude)) - 8), not below 2^-127; q =
//   x / scale, rounded to nearest, ties to even, at most 448 in magnitude. A block of zeros is q =
//   0, scale = 2^-127; one with a NaN or an infinity is q = 0, scale = NaN (0xff).
void quantize_rows(ConstRows x, Rows q, Rows scales);

// x: F32 or BF16 of the shape of q: q * scale, for BF16 rounded to nearest, ties to even.
void dequantize_rows(ConstRows q, ConstRows scales, Rows x);

// The same for all types in which rows travel, F32 and BF16 without scales: x as `to`, and back.
void encode_rows(ConstRows x, Rows to, Rows scales);
void decode_rows(ConstRows from, ConstRows scales, Rows x);

}  // namespace trimtab
