// SPDX-License-Identifier: Apache-2.0
#include "base/quantize_rows.h"

#include "base/cat.h"
#include "base/quantize_kernel.h"
#include "base/rows.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

template <class T>
void quantize_row(const T* x, int64_t count, std::byte* q, DType dtype, std::byte* scales) {
  if (dtype == DType::kI8) {
    quantize_int8_row(x, count, reinterpret_cast<int8_t*>(q), reinterpret_cast<float*>(scales));
  } else {
    quantize_mx_row(x, count, reinterpret_cast<uint8_t*>(q), reinterpret_cast<uint8_t*>(scales));
  }
}

void put(float value, float& to) {
  to = value;
}
void put(float value, bf16_t& to) {
  to = to_bf16(value);
}

template <class T>
void dequantize_row(const std::byte* q, const std::byte* scales, int64_t count, DType dtype,
                    T* to) {
  if (dtype == DType::kI8) {
    const float scale = *reinterpret_cast<const float*>(scales);
    for (int64_t h = 0; h < count; ++h) put(static_cast<int8_t>(q[h]) * scale, to[h]);
    return;
  }
  for (int64_t h = 0; h < count; ++h) {
    const float scale = to_float(e8m0_t{static_cast<uint8_t>(scales[h / kMxBlock])});
    put(to_float(e4m3_t{static_cast<uint8_t>(q[h])}) * scale, to[h]);
  }
}

void check(ConstRows x, ConstRows q, ConstRows scales) {
  if (!is_quantised(q.dtype)) {
    throw InvalidArgument(cat("quantised rows are I8 or F8_E4M3, not ", name(q.dtype)));
  }
  if (q.dtype == DType::kF8E4M3 && q.cols % kMxBlock != 0) {
    throw InvalidArgument(
        cat("F8_E4M3 rows have blocks of ", kMxBlock, " elements; ", q.cols, " is no multiple"));
  }
  const ScaleShape shape = scale_shape(q.dtype, q.cols);
  if (x.rows != q.rows || x.cols != q.cols || scales.rows != q.rows || scales.cols != shape.cols ||
      scales.dtype != shape.dtype) {
    throw InvalidArgument(cat("quantised rows: x [", x.rows, ", ", x.cols, "], q ", name(q.dtype),
                              " [", q.rows, ", ", q.cols, "], scales ", name(scales.dtype), " [",
                              scales.rows, ", ", scales.cols, "]"));
  }
}

}  // namespace

e4m3_t to_e4m3(float x) {
  return {static_cast<uint8_t>(e4m3_magnitude(x) | ((bits_as<uint32_t>(x) >> 24) & 0x80U))};
}

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
      quantize_row(x.row_as<float>(i), x.cols, q.row(i), q.dtype, scales.row(i));
    } else {
      quantize_row(reinterpret_cast<const uint16_t*>(x.row(i)), x.cols, q.row(i), q.dtype,
                   scales.row(i));
    }
  }
}

void dequantize_rows(ConstRows q, ConstRows scales, Rows x) {
  check(x, q, scales);
  for (int64_t i = 0; i < q.rows; ++i) {
    if (x.dtype == DType::kF32) {
      dequantize_row(q.row(i), scales.row(i), q.cols, q.dtype, x.row_as<float>(i));
    } else {
      dequantize_row(q.row(i), scales.row(i), q.cols, q.dtype, x.row_as<bf16_t>(i));
    }
  }
}

void encode_rows(ConstRows x, Rows to, Rows scales) {
  if (is_quantised(to.dtype)) return quantize_rows(x, to, scales);
  convert_rows(x, to);
}

void decode_rows(ConstRows from, ConstRows scales, Rows x) {
  if (is_quantised(from.dtype)) return dequantize_rows(from, scales, x);
  convert_rows(from, x);
}

}  // namespace trimtab
