// SPDX-License-Identifier: Apache-2.0
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

std::optional<WeightFormat> native_format(const MatrixSource& matrix) {
  if (!matrix.is_quantised()) return std::nullopt;
  const Quantization& q = matrix.quantization;
  const bool whole_rows = q.block_cols >= matrix.cols;
  const bool mx = q.scale_dtype == DType::kF8E8M0 && q.block_cols == 32;
  switch (matrix.dtype) {
    case DType::kI8:
      if (whole_rows) return Scheme::kW8A8;
      break;
    case DType::kU4:
      if (whole_rows) return WeightFormat(Scheme::kW4A8, 0);
      if (q.block_cols % 8 == 0) return WeightFormat(Scheme::kW4A8, static_cast<int>(q.block_cols));
      break;
    case DType::kF8E4M3:
      if (mx) return Scheme::kMXFP8;
      if (whole_rows || q.block_cols % 128 == 0) return Scheme::kFP8;
      break;
    case DType::kF4:
      if (mx) return Scheme::kMXFP4;
      break;
    default:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<WeightFormat> native_format(const MlpSource& mlp) {
  const std::optional<WeightFormat> format = native_format(mlp.gate);
  return native_format(mlp.up) == format && native_format(mlp.down) == format ? format
                                                                              : std::nullopt;
}

}  // namespace trimtab
