// SPDX-License-Identifier: Apache-2.0
#include "experts/operand.h"

#include <cstring>
#include <limits>

#include "base/quantize_rows.h"
#include "base/rows.h"
#include "experts/transpose.h"

namespace trimtab {
namespace {

bool is_int(Product product) {
  return product == kInt8Product || product == kInt4Product;
}

Product product_for(const PackedWeights& weights, DType x) {
  const Product product = storage(weights.format, weights.in).product;
  return product == kBF16Product && x == DType::kF32 ? kBF16F32Product : product;
}

// The type of the rows that a product reads.
DType row_dtype(Product product) {
  switch (product) {
    case kF32Product:
    case kF16Product:
    case kBF16F32Product:
      return DType::kF32;
    case kInt8Product:
    case kInt4Product:
      return DType::kI8;
    default:
      return DType::kBF16;
  }
}

}  // namespace

Operand::Operand(const PackedWeights& weights, const RowSource& source, Carver& carver,
                 Packing packing)
    : kernels_(weights.kernels),
      source_(source),
      storage_(storage(weights.format, weights.in)),
      product_(product_for(weights, source.x.dtype)),
      max_rows_(weights.kernels->max_rows[product_]),
      packs_(packing == kPacked && product_ != kBF16F32Product),  // whose steps are 8 bytes
      in_place_(weights.format.quantized_rows() == weights.format.rows() &&
                weights.row_scale.bytes() == 0 && weights.order.bytes() == 0 &&
                source.x.dtype == row_dtype(product_) && storage_.padded_in == weights.in),
      row_bytes_(shape_bytes(row_dtype(product_), storage_.padded_in)) {
  const int64_t rows = source.x.rows;
  codes_ = carver.take_rows(rows, static_cast<int64_t>(row_bytes_), DType::kU8);
  if (!is_int(product_)) return;
  row_scales_ = carver.take_rows(rows, 1, DType::kF32);
  sums_ = carver.take<int32_t>(rows * storage_.groups()).data();
}

size_t Operand::bytes(const PackedWeights& weights, int64_t rows, DType x) {
  Carver carver(nullptr);
  Operand(weights, {ConstRows(nullptr, rows, weights.in, weights.in, x)}, carver);
  return carver.used();
}

int64_t Operand::tiles(int64_t rows) const {
  return packed(rows) ? num_tiles(rows, max_rows_) : in_place_ ? 0 : 1;
}

size_t Operand::prepare_scratch() const {
  // A tile of rows; an MX row's codes, scales and last block.
  return cells(max_rows_, row_bytes_) + cells(2, storage_.padded_in) + kMxBlock * sizeof(float);
}

void Operand::quantize_int8(int64_t i, const float* row_scale, std::byte* row) const {
  const ConstRows& x = source_.x;
  auto* const q = reinterpret_cast<int8_t*>(row);
  float* const scale = row_scales_.row_as<float>(i);
  if (x.dtype == DType::kI8) {
    std::memcpy(q, source_.row(i), x.cols);
    std::memcpy(scale, source_.row_scales(i), sizeof(float));
  } else if (row_scale != nullptr) {
    const auto quantize = kernels_->quantize_int8_by[x.dtype == DType::kBF16];
    const bool numbers = quantize(source_.row(i), x.cols, *row_scale, q);
    *scale = numbers ? *row_scale : std::numeric_limits<float>::quiet_NaN();
  } else {
    kernels_->quantize_int8[x.dtype == DType::kBF16](source_.row(i), x.cols, q, scale);
  }
  std::memset(q + x.cols, 0, row_bytes_ - cells(x.cols));
  kernels_->sum_groups(q, storage_.groups(), storage_.group, sums_ + i * storage_.groups());
}

void Operand::round_to_mx(int64_t i, std::byte* row, std::byte* scratch) const {
  const ConstRows& x = source_.x;
  const int64_t padded = storage_.padded_in, whole = x.cols / kMxBlock * kMxBlock;
  auto* const codes = reinterpret_cast<uint8_t*>(scratch);
  uint8_t* const scales = codes + padded;
  const std::byte* const from = source_.row(i);
  if (x.dtype == DType::kF8E4M3) {
    std::memset(codes + x.cols, 0, padded - x.cols);
    std::memcpy(codes, from, x.cols);
    std::memcpy(scales, source_.row_scales(i), source_.scales.cols);
  } else {
    const auto quantize = kernels_->quantize_mx[x.dtype == DType::kBF16];
    quantize(from, whole, codes, scales);
    if (whole < padded) {
      const size_t used = shape_bytes(x.dtype, x.cols - whole);
      std::byte* const tail =
          scratch + 2 * padded;  // the last block, which is not whole, with zeros behind
      std::memcpy(tail, from + shape_bytes(x.dtype, whole), used);
      std::memset(tail + used, 0, shape_bytes(x.dtype, kMxBlock) - used);
      quantize(tail, kMxBlock, codes + whole, scales + whole / kMxBlock);
    }
  }
  kernels_->dequantize_mx(codes, scales, padded, reinterpret_cast<uint16_t*>(row));
}

void Operand::round_to_e4m3(int64_t i, float row_scale, std::byte* row) const {
  const ConstRows& x = source_.x;
  const size_t used = shape_bytes(DType::kBF16, x.cols);
  kernels_->round_e4m3[x.dtype == DType::kBF16](source_.row(i), x.cols, row_scale,
                                                reinterpret_cast<uint16_t*>(row));
  std::memset(row + used, 0, row_bytes_ - used);
}

void Operand::convert(int64_t i, std::byte* row) const {
  const DType dtype = row_dtype(product_);
  const size_t used = shape_bytes(dtype, source_.x.cols);
  convert_row(source_.row(i), source_.x.dtype, source_.x.cols, dtype, row);
  std::memset(row + used, 0, row_bytes_ - used);
}

void Operand::gather(int64_t i, const int32_t* order, std::byte* row, std::byte* scratch) const {
  convert(i, scratch);
  const auto* const from = reinterpret_cast<const uint16_t*>(scratch);
  auto* const to = reinterpret_cast<uint16_t*>(row);
  const int64_t cols = source_.x.cols;
  for (int64_t k = 0; k < cols; ++k) to[k] = from[order[k]];
  std::memset(to + cols, 0, row_bytes_ - shape_bytes(DType::kBF16, cols));
}

void Operand::prepare(const PackedWeights& weights, int64_t first, int64_t count, bool packed,
                      std::byte* scratch) const {
  const float* const row_scale =
      weights.row_scale.bytes() == 0 ? nullptr : weights.row_scale.as<float>();
  const bool ordered = weights.order.bytes() > 0;
  std::byte* const out = codes_.row(first);
  std::byte* const rows = packed ? scratch : out;
  std::byte* const more_scratch = scratch + cells(max_rows_, row_bytes_);
  for (int64_t r = 0; r < count && !in_place_; ++r) {
    std::byte* const row = rows + cells(r, row_bytes_);
    if (is_int(product_)) {
      quantize_int8(first + r, row_scale, row);
    } else if (product_ == kMX8Product) {
      round_to_mx(first + r, row, more_scratch);
    } else if (row_scale != nullptr) {
      round_to_e4m3(first + r, *row_scale, row);
    } else if (ordered) {
      gather(first + r, weights.order.as<int32_t>(), row, more_scratch);
    } else {
      convert(first + r, row);
    }
  }
  if (!packed) return;
  const auto row = [&](int64_t r) -> const std::byte* {
    return in_place_ ? source_.row(first + r) : rows + cells(r, row_bytes_);
  };
  transpose_steps(row, count, static_cast<int64_t>(row_bytes_ / 4),
                  reinterpret_cast<uint32_t*>(out), count);
}

void Operand::fill(PanelTask& task, int64_t first, int64_t count) const {
  task.m = count;
  task.packed = packed(count);
  if (!in_place_ || task.packed) {
    task.x = codes_.row(first);
    task.x_stride = row_bytes_;
  } else if (source_.at.x.empty()) {
    task.x = source_.x.row(first);
    task.x_stride = shape_bytes(source_.x.dtype, source_.x.stride);
  } else {
    task.rows = source_.at.x.data() + first;
  }
  if (!is_int(product_)) return;
  task.x_scales = row_scales_.row_as<float>(first);
  task.x_sums = sums_ + first * storage_.groups();
}

}  // namespace trimtab
