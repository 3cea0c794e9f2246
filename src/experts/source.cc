// SPDX-License-Identifier: Apache-2.0
#include "experts/source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Sources may be anywhere in a mapped file, so they are not aligned.
template <class T>
T load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

uint8_t load_nibble(const std::byte* data, int64_t index) {
  const auto pair = std::to_integer<unsigned>(data[index / 2]);
  return static_cast<uint8_t>(index % 2 == 0 ? pair & 15U : pair >> 4);
}

constexpr auto kE4M3 = [] {
  std::array<float, 256> values{};
  for (size_t code = 0; code < values.size(); ++code)
    values[code] = to_float(e4m3_t{static_cast<uint8_t>(code)});
  return values;
}();

// An element as it is, without scale and zero point.
template <DType kType>
float load_element(const std::byte* data, int64_t index) {
  if constexpr (kType == DType::kF32) return load<float>(data, index);
  if constexpr (kType == DType::kBF16) return to_float(load<bf16_t>(data, index));
  if constexpr (kType == DType::kF16) return to_float(load<f16_t>(data, index));
  if constexpr (kType == DType::kI8) return load<int8_t>(data, index);
  if constexpr (kType == DType::kU8) return load<uint8_t>(data, index);
  if constexpr (kType == DType::kF8E4M3) return kE4M3[std::to_integer<size_t>(data[index])];
  if constexpr (kType == DType::kF4) return to_float(e2m1_t{load_nibble(data, index)});
  if constexpr (kType == DType::kU4) return load_nibble(data, index);
}

// Calls fn with the element type as a constant.
template <class Fn>
auto with_type(DType dtype, const Fn& fn) {
  const auto call = [&]<DType kType>() { return fn(std::integral_constant<DType, kType>()); };
  switch (dtype) {
    case DType::kF32:
      return call.template operator()<DType::kF32>();
    case DType::kBF16:
      return call.template operator()<DType::kBF16>();
    case DType::kF16:
      return call.template operator()<DType::kF16>();
    case DType::kI8:
      return call.template operator()<DType::kI8>();
    case DType::kU8:
      return call.template operator()<DType::kU8>();
    case DType::kF8E4M3:
      return call.template operator()<DType::kF8E4M3>();
    case DType::kF4:
      return call.template operator()<DType::kF4>();
    case DType::kU4:
      return call.template operator()<DType::kU4>();
    default:
      throw InvalidArgument(cat("weights can't be ", name(dtype)));
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

bool may_have_zeros(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kU8 || dtype == DType::kU4;
}

int64_t num_blocks(int64_t size, int64_t block) {
  return (size - 1) / block + 1;
}

void check_quantization(const MatrixSource& source, std::string_view what) {
  const Quantization& q = source.quantization;
  if (!is_float(q.scale_dtype) && q.scale_dtype != DType::kF8E8M0) {
    throw InvalidArgument(
        cat(what, ": scales must be F32, BF16, F16 or F8_E8M0, not ", name(q.scale_dtype)));
  }
  if (q.block_rows < 1 || q.block_cols < 1) {
    throw InvalidArgument(cat(what, ": blocks of ", q.block_rows, " x ", q.block_cols));
  }
  if (q.zeros != nullptr && !may_have_zeros(source.dtype)) {
    throw InvalidArgument(cat(what, ": ", name(source.dtype), " has no zero points"));
  }
  if (q.zeros != nullptr && q.zero_rows_per_word < 1) {
    throw InvalidArgument(cat(what, ": ", q.zero_rows_per_word, " zero points in a word"));
  }
  const int64_t across = num_blocks(source.cols, q.block_cols);
  for (int64_t j = 0; j < source.cols && q.column_blocks != nullptr; ++j) {
    const int64_t block = source.block_of_column(j);
    if (block < 0 || block >= across) {
      throw InvalidArgument(
          cat(what, ": column ", j, " is of block ", block, ", there are ", across));
    }
  }
  for (int64_t b = 0; b < num_blocks(source.rows, q.block_rows); ++b) {
    for (int64_t c = 0; c < across; ++c) {
      const float scale = source.scale(b, c);
      if (!(scale >= 0.0F && std::isfinite(scale))) {
        throw InvalidArgument(cat(what, ": the scale of block (", b, ", ", c, ") is ", scale));
      }
    }
  }
}

// (q - zero) * scale for elements [begin, end) of a row.
void dequantise(const MatrixSource& source, int64_t row, int64_t begin, int64_t end, float* out) {
  const int64_t b = row / source.quantization.block_rows;
  const bool ordered = source.quantization.column_blocks == nullptr;
  const int64_t width = ordered ? source.quantization.block_cols : 1;
  while (begin < end) {
    const int64_t count = std::min(end - begin, width - begin % width);
    const int64_t c = source.block_of_column(begin);
    const float scale = source.scale(b, c);
    const auto zero = static_cast<float>(source.zero_point(b, c));
    for (int64_t j = 0; j < count; ++j) out[j] = (out[j] - zero) * scale;
    begin += count;
    out += count;
  }
}

}  // namespace

float MatrixSource::scale(int64_t b, int64_t c) const {
  if (!is_quantised()) return 1.0F;
  const Quantization& q = quantization;
  const int64_t index = b * q.scale_row_stride + c * q.scale_col_stride;
  if (q.scale_dtype == DType::kF8E8M0) return to_float(load<e8m0_t>(q.scales, index));
  return with_type(q.scale_dtype, [&](auto type) { return load_element<type()>(q.scales, index); });
}

int MatrixSource::zero_point(int64_t b, int64_t c) const {
  const Quantization& q = quantization;
  if (q.zeros == nullptr) return dtype == DType::kU4 ? 8 : dtype == DType::kU8 ? 128 : 0;
  const int64_t n = q.zero_rows_per_word, row = place_of_row(b);
  const int64_t index = row / n * q.zero_row_stride + c * q.zero_col_stride + row % n;
  const int stored = dtype == DType::kU4   ? load_nibble(q.zeros, index)
                     : dtype == DType::kU8 ? load<uint8_t>(q.zeros, index)
                                           : load<int8_t>(q.zeros, index);
  return stored + q.zero_offset;
}

int64_t MatrixSource::block_of_column(int64_t j) const {
  const Quantization& q = quantization;
  return q.column_blocks == nullptr ? j / q.block_cols : load<int32_t>(q.column_blocks, j);
}

std::vector<int32_t> columns_by_block(const MatrixSource& source) {
  const Quantization& q = source.quantization;
  if (q.column_blocks == nullptr) return {};
  const int64_t across = num_blocks(source.cols, q.block_cols);
  std::vector<int32_t> order(static_cast<size_t>(source.cols)),
      next(static_cast<size_t>(across));  // where the next column of a block goes
  for (int64_t c = 0; c < across; ++c)
    next[static_cast<size_t>(c)] = static_cast<int32_t>(c * q.block_cols);
  for (int64_t j = 0; j < source.cols; ++j) {
    const int64_t block = source.block_of_column(j);
    if (block < 0 || block >= across) return {};
    const int32_t at = next[static_cast<size_t>(block)]++;
    if (at >= std::min((block + 1) * q.block_cols, source.cols)) return {};
    order[static_cast<size_t>(at)] = static_cast<int32_t>(j);
  }
  return order;
}

float MatrixSource::at(int64_t i, int64_t j) const {
  const float q =
      with_type(dtype, [&](auto type) { return load_element<type()>(data, index(i, j)); });
  if (!is_quantised()) return q;
  const int64_t b = i / quantization.block_rows, c = block_of_column(j);
  return (q - static_cast<float>(zero_point(b, c))) * scale(b, c);
}

float VectorSource::at(int64_t i) const {
  return with_type(dtype, [&](auto type) { return load_element<type()>(data, i * stride); });
}

void read_row(const MatrixSource& source, int64_t row, int64_t begin, int64_t end, float* out) {
  const int64_t first = source.index(row, 0);
  with_type(source.dtype, [&](auto type) {
    if (source.col_stride == 1) {
      for (int64_t j = begin; j < end; ++j)
        out[j - begin] = load_element<type()>(source.data, first + j);
    } else if (source.cols_per_word == 1) {
      for (int64_t j = begin; j < end; ++j) {
        out[j - begin] = load_element<type()>(source.data, first + j * source.col_stride);
      }
    } else {
      for (int64_t j = begin; j < end; ++j)
        out[j - begin] = load_element<type()>(source.data, source.index(row, j));
    }
  });
  if (source.is_quantised()) dequantise(source, row, begin, end, out);
}

void read_row(const MatrixSource& source, int64_t row, float* out) {
  read_row(source, row, 0, source.cols, out);
}

void read_rows(const MatrixSource& source, int64_t first, Rows out) {
  for (int64_t r = 0; r < out.rows; ++r) read_row(source, first + r, out.row_as<float>(r));
}

void check_source(const MatrixSource& source, std::string_view what) {
  const DType dtype = source.dtype;
  if (!is_float(dtype) && !may_have_zeros(dtype) && dtype != DType::kF8E4M3 &&
      dtype != DType::kF4) {
    throw InvalidArgument(
        cat(what, " must be F32, BF16, F16, I8, U8, F8_E4M3, F4 or U4, not ", name(dtype)));
  }
  if (source.cols_per_word < 1) {
    throw InvalidArgument(cat(what, ": ", source.cols_per_word, " columns in a word"));
  }
  if (source.rows < 1 || source.cols < 1 || source.data == nullptr) {
    throw InvalidArgument(cat(what, " is empty: [", source.rows, ", ", source.cols, "]",
                              source.data == nullptr ? ", no data" : ""));
  }
  if (source.is_quantised() == is_float(dtype)) {
    throw InvalidArgument(cat(what, " is ", name(dtype),
                              source.is_quantised() ? " and has scales" : " without scales"));
  }
  if (source.is_quantised()) check_quantization(source, what);
}

void check_source(const MatrixSource& source, int64_t rows, int64_t cols, std::string_view what) {
  check_source(source, what);
  if (source.rows != rows || source.cols != cols) {
    throw InvalidArgument(
        cat(what, " must be [", rows, ", ", cols, "], is [", source.rows, ", ", source.cols, "]"));
  }
}

void check_source(const VectorSource& source, int64_t size, std::string_view what) {
  if (source.data == nullptr) return;
  if (!is_float(source.dtype)) {
    throw InvalidArgument(cat(what, " must be F32, BF16 or F16, not ", name(source.dtype)));
  }
  if (source.size != size)
    throw InvalidArgument(cat(what, " must have ", size, " elements, has ", source.size));
}

}  // namespace trimtab
