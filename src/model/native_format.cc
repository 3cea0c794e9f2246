// SPDX-License-Identifier: Apache-2.0
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

// weights_only: rows are not to be rounded to int8.
std::optional<WeightFormat> native_format(const MatrixSource& matrix, bool weights_only) {
  if (!matrix.is_quantised()) return std::nullopt;
  const Quantization& q = matrix.quantization;
  // Rows in bf16 can be put into another order.
  if (q.column_blocks != nullptr && (!weights_only || columns_by_block(matrix).empty()))
    return std::nullopt;
  const bool whole_rows = q.block_cols >= matrix.cols;
  const bool mx = q.scale_dtype == DType::kF8E8M0 && q.block_cols == 32;
  const int group = whole_rows ? 0 : static_cast<int>(q.block_cols);
  switch (matrix.dtype) {
    case DType::kI8:
    case DType::kU8:
      if (whole_rows && !weights_only) return Scheme::kW8A8;
      if (group % 8 == 0) return WeightFormat(Scheme::kW8A16, group);
      break;
    case DType::kU4:
      if (group % 8 == 0) return WeightFormat(weights_only ? Scheme::kW4A16 : Scheme::kW4A8, group);
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

std::optional<WeightFormat> native_format(const MlpSource& mlp, bool weights_only) {
  const std::optional<WeightFormat> format = native_format(mlp.gate, weights_only);
  const bool alike = native_format(mlp.up, weights_only) == format &&
                     native_format(mlp.down, weights_only) == format &&
                     columns_by_block(mlp.gate) == columns_by_block(mlp.up);
  return alike ? format : std::nullopt;
}

bool are_weights_only(const QuantizationConfig::Group& group) {
  return group.rows == QuantizationConfig::Rows::kPlain || group.rows_dtype != DType::kI8;
}

}  // namespace trimtab
