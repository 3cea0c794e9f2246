// SPDX-License-Identifier: Apache-2.0
#include "experts/operand.h"

#include <algorithm>
#include <cstring>

#include "base/quantize_rows.h"
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

size_t element_bytes(DType dtype) {
  return static_cast<size_t>(bits(dtype)) / 8;
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

template <class From, class To>
void convert_row(const std::byte* from, int64_t count, std::byte* to) {
  const auto* x = reinterpret_cast<const From*>(from);
  auto* y = reinterpret_cast<To*>(to);
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<To, float>) {
      y[i] = to_float(x[i]);
    } else {
      y[i] = to_bf16(to_float(x[i]));
    }
  }
}

void convert_row(const std::byte* from, DType from_dtype, int64_t count, DType to_dtype, std::byte* to) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * element_bytes(from_dtype));
  } else if (from_dtype == DType::kF32) {
    convert_row<float, bf16_t>(from, count, to);
  } else {
    convert_row<bf16_t, float>(from, count, to);
  }
}

// e4m3 and its scale: exact in bf16 but for subnormal results, which count as 0 there.
void decode_mx_row(const uint8_t* codes, const uint8_t* scales, int64_t count, std::byte* out) {
  auto* y = reinterpret_cast<bf16_t*>(out);
  for (int64_t i = 0; i < count; i += kMxBlock) {
    const float scale = to_float(e8m0_t{scales[i / kMxBlock]});
    for (int64_t j = 0; j < kMxBlock; ++j) y[i + j] = to_bf16(to_float(e4m3_t{codes[i + j]}) * scale);
  }
}

}  // namespace

Operand::Operand(const PackedWeights& weights, const RowSource& source, Carver& carver, Packing packing)
    : source_(source),
      storage_(storage(weights.format, weights.in)),
      product_(product_for(weights, source.x.dtype)),
      max_rows_(weights.kernels->max_rows[product_]),
      packs_(packing == kPacked && product_ != kBF16F32Product),  // whose steps are 8 bytes
      in_place_(weights.format.quantized_rows() == weights.format.rows() && source.x.dtype == row_dtype(product_) &&
                storage_.padded_in == weights.in),
      row_bytes_(static_cast<size_t>(storage_.padded_in) * element_bytes(row_dtype(product_))) {
  const int64_t rows = source.x.rows;
  codes_ = carver.take_rows(rows, static_cast<int64_t>(row_bytes_), DType::kU8);
  if (!is_int(product_)) return;
  row_scales_ = carver.take_rows(rows, 1, DType::kF32);
  sums_ = carver.take<int32_t>(rows * storage_.groups()).data();
}

size_t Operand::bytes(const PackedWeights& weights, int64_t rows) {
  Carver carver(nullptr);
  // Rows of f32 take most.
  Operand(weights, {ConstRows(nullptr, rows, weights.in, weights.in, DType::kF32), {}}, carver);
  return carver.used();
}

int64_t Operand::tiles(int64_t rows) const {
  return packed(rows) ? num_tiles(rows, max_rows_) : in_place_ ? 0 : 1;
}

size_t Operand::prepare_scratch() const {
  // Rows as they are, and their e4m3 codes and scales.
  const auto padded = static_cast<size_t>(storage_.padded_in);
  return static_cast<size_t>(std::max(max_rows_, kMaxUnpackedRows)) * row_bytes_ + 2 * padded;
}

void Operand::quantize(const ConstRows& x, int64_t first, std::byte* rows) const {
  const int64_t in = x.cols, padded = storage_.padded_in;
  if (is_int(product_)) {
    const Rows q(rows, x.rows, in, padded, DType::kI8);
    if (x.dtype == DType::kI8) {
      for (int64_t r = 0; r < x.rows; ++r) {
        std::memcpy(q.row(r), x.row(r), static_cast<size_t>(in));
        *row_scales_.row_as<float>(first + r) = *source_.scales.row_as<float>(first + r);
      }
    } else {
      quantize_rows(x, q, row_scales_.slice(first, x.rows));
    }
    for (int64_t r = 0; r < x.rows; ++r) {
      const auto* values = reinterpret_cast<int8_t*>(q.row(r));
      std::memset(q.row(r) + in, 0, static_cast<size_t>(padded - in));
      for (int64_t g = 0; g < storage_.groups(); ++g) {
        int32_t sum = 0;
        for (int64_t i = 0; i < storage_.group; ++i) sum += values[g * storage_.group + i];
        sums_[(first + r) * storage_.groups() + g] = sum;
      }
    }
    return;
  }
  // MX: padded rows, so that the last block is whole.
  std::byte* const codes = rows + static_cast<size_t>(std::max(max_rows_, kMaxUnpackedRows)) * row_bytes_;
  std::byte* const scales = codes + padded;
  for (int64_t r = 0; r < x.rows; ++r) {
    std::byte* const row = rows + static_cast<size_t>(r) * row_bytes_;
    if (x.dtype == DType::kF8E4M3) {
      std::memset(codes, 0, static_cast<size_t>(padded));
      std::memcpy(codes, x.row(r), static_cast<size_t>(in));
      std::memcpy(scales, source_.scales.row(first + r), static_cast<size_t>(source_.scales.cols));
    } else {
      convert_row(x.row(r), x.dtype, in, DType::kBF16, row);
      std::memset(row + 2 * in, 0, static_cast<size_t>(2 * (padded - in)));
      quantize_rows(ConstRows(row, 1, padded, padded, DType::kBF16), Rows(codes, 1, padded, padded, DType::kF8E4M3),
                    Rows(scales, 1, padded / kMxBlock, padded / kMxBlock, DType::kF8E8M0));
    }
    decode_mx_row(reinterpret_cast<uint8_t*>(codes), reinterpret_cast<uint8_t*>(scales), padded, row);
  }
}

void Operand::prepare(int64_t first, int64_t count, bool packed, std::byte* scratch) const {
  const ConstRows x = source_.x.slice(first, count);
  const DType dtype = row_dtype(product_);
  std::byte* const out = codes_.row(first);
  std::byte* const rows = packed ? scratch : out;
  const std::byte* from = rows;
  size_t stride = row_bytes_;
  if (in_place_) {
    from = x.data;
    stride = static_cast<size_t>(x.stride) * element_bytes(dtype);
  } else if (dtype == DType::kI8 || x.dtype == DType::kF8E4M3 || product_ == kMX8Product) {
    // The codes and scales of MX rows are in the scratch: quantise there, copy what is not packed.
    quantize(x, first, product_ == kMX8Product ? scratch : rows);
    if (product_ == kMX8Product && !packed) std::memcpy(out, scratch, static_cast<size_t>(count) * row_bytes_);
  } else {
    for (int64_t r = 0; r < count; ++r) {
      std::byte* const row = rows + static_cast<size_t>(r) * row_bytes_;
      const size_t used = static_cast<size_t>(x.cols) * element_bytes(dtype);
      convert_row(x.row(r), x.dtype, x.cols, dtype, row);
      std::memset(row + used, 0, row_bytes_ - used);
    }
  }
  if (packed) {
    transpose_steps(from, stride, count, static_cast<int64_t>(row_bytes_ / 4), reinterpret_cast<uint32_t*>(out), count);
  }
}

void Operand::fill(PanelTask& task, int64_t first, int64_t count) const {
  task.m = count;
  task.packed = packed(count);
  if (in_place_ && !task.packed) {
    task.x = source_.x.row(first);
    task.x_stride = static_cast<size_t>(source_.x.stride) * element_bytes(source_.x.dtype);
  } else {
    task.x = codes_.row(first);
    task.x_stride = row_bytes_;
  }
  if (!is_int(product_)) return;
  task.x_scales = row_scales_.row_as<float>(first);
  task.x_sums = sums_ + first * storage_.groups();
}

}  // namespace trimtab
