// SPDX-License-Identifier: Apache-2.0
#include "experts/source.h"

#include <cstring>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Sources may be anywhere in a mapped file, so they are not aligned.
template <class T>
float load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return to_float(value);
}

float load_element(const std::byte* data, DType dtype, int64_t index) {
  const std::byte* p = data + index * (bits(dtype) / 8);
  switch (dtype) {
    case DType::kF32:
      return load<float>(p);
    case DType::kBF16:
      return load<bf16_t>(p);
    case DType::kF16:
      return load<f16_t>(p);
    default:
      throw InvalidArgument(cat("weights must be F32, BF16 or F16, not ", name(dtype)));
  }
}

void check_dtype(DType dtype, std::string_view what) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw InvalidArgument(cat(what, " must be F32, BF16 or F16, not ", name(dtype)));
  }
}

}  // namespace

float MatrixSource::at(int64_t i, int64_t j) const {
  return load_element(data, dtype, i * row_stride + j * col_stride);
}

float VectorSource::at(int64_t i) const {
  return load_element(data, dtype, i * stride);
}

void check_source(const MatrixSource& source, std::string_view what) {
  check_dtype(source.dtype, what);
  if (source.rows < 1 || source.cols < 1 || source.data == nullptr) {
    throw InvalidArgument(
        cat(what, " is empty: [", source.rows, ", ", source.cols, "]", source.data == nullptr ? ", no data" : ""));
  }
}

void check_source(const MatrixSource& source, int64_t rows, int64_t cols, std::string_view what) {
  check_source(source, what);
  if (source.rows != rows || source.cols != cols) {
    throw InvalidArgument(cat(what, " must be [", rows, ", ", cols, "], is [", source.rows, ", ", source.cols, "]"));
  }
}

void check_source(const VectorSource& source, int64_t size, std::string_view what) {
  if (source.data == nullptr) return;
  check_dtype(source.dtype, what);
  if (source.size != size) throw InvalidArgument(cat(what, " must have ", size, " elements, has ", source.size));
}

}  // namespace trimtab
