// SPDX-License-Identifier: Apache-2.0
// What weights and rows stand for in every format, in double, for the tests of this room: decoded
// from a row's codes by the formats' definitions, never from panels or tiles.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/quantize_rows.h"
#include "experts/encode.h"
#include "experts/test_matrices.h"
#include "trimtab/experts.h"

namespace trimtab::test {

inline const WeightFormat kFormats[] = {
    Scheme::kF32,        Scheme::kBF16,        Scheme::kF16,   Scheme::kW8A8,       Scheme::kW4A8,
    {Scheme::kW4A8, 32}, {Scheme::kW4A8, 0},   Scheme::kMXFP8, Scheme::kFP8,        Scheme::kMXFP4,
    Scheme::kW4A16,      {Scheme::kW4A16, 32}, Scheme::kW8A16, {Scheme::kW8A16, 64}};

// OCP 8-bit and MX specifications: exponent biases 7 and 1.
inline double e4m3_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15U), fraction = static_cast<int>(code & 7U);
  if ((code & 0x7fU) == 0x7fU) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80U ? -magnitude : magnitude;
}
inline double e2m1_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 1 & 3U), fraction = static_cast<int>(code & 1U);
  const double magnitude = exponent == 0 ? 0.5 * fraction : std::ldexp(2 + fraction, exponent - 2);
  return code & 8U ? -magnitude : magnitude;
}

struct Matrix {
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), values(static_cast<size_t>(r * c)) {}
  double* row(int64_t i) { return values.data() + i * cols; }
  const double* row(int64_t i) const { return values.data() + i * cols; }
  double at(int64_t i, int64_t j) const { return row(i)[j]; }

  int64_t rows, cols;
  std::vector<double> values;
};

// The codes of one row and what goes with them.
class StoredRow {
 public:
  StoredRow(WeightFormat format, const Storage& storage)
      : scheme_(format.scheme),
        storage_(storage),
        codes_(static_cast<size_t>(storage.padded_in) * 4),
        scales_(static_cast<size_t>(storage.groups() * storage.scale_bytes)),
        zeros_(storage.groups(), zero_code(format)) {}

  void encode(RowEncoder& encoder, int64_t row) {
    encoder.encode(row, codes_.data(), scales_.data(),
                   encoder.has_zeros() ? zeros_.data() : nullptr);
  }
  unsigned code(int64_t j) const { return std::to_integer<unsigned>(codes_[j]); }
  // Of the group of input j.
  double scale(int64_t j) const {
    const int64_t group = j / storage_.group;
    if (storage_.scale_bytes == 1) return std::ldexp(1.0, load<uint8_t>(scales_, group) - 127);
    return static_cast<double>(load<float>(scales_, group));
  }
  double value(int64_t j) const {
    switch (scheme_) {
      case Scheme::kF32:
        return static_cast<double>(load<float>(codes_, j));
      case Scheme::kBF16:
        return static_cast<double>(to_float(load<bf16_t>(codes_, j)));
      case Scheme::kF16:
        return static_cast<double>(to_float(load<f16_t>(codes_, j)));
      case Scheme::kW8A8:
      case Scheme::kW4A8:
      case Scheme::kW4A16:
      case Scheme::kW8A16:
        return (static_cast<int>(code(j)) - zeros_[j / storage_.group]) * scale(j);
      case Scheme::kMXFP8:
      case Scheme::kFP8:
        return e4m3_value(code(j)) * scale(j);
      case Scheme::kMXFP4:
        return e2m1_value(code(j)) * scale(j);
    }
    return 0;
  }

 private:
  template <class T>
  static T load(const std::vector<std::byte>& bytes, int64_t index) {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
    return value;
  }

  Scheme scheme_;
  Storage storage_;
  std::vector<std::byte> codes_, scales_;
  std::vector<int32_t> zeros_;
};

inline Matrix stored_weights(const MatrixSource& source, WeightFormat format) {
  const Storage s = storage(format, source.cols);
  RowEncoder encoder(source, format, s);
  Matrix weights(source.rows, source.cols);
  StoredRow row(format, s);
  for (int64_t i = 0; i < source.rows; ++i) {
    row.encode(encoder, i);
    for (int64_t j = 0; j < source.cols; ++j) weights.row(i)[j] = row.value(j);
  }
  return weights;
}

// Rows in 8 bits with their scales, as they travel; cols padded to whole MX blocks.
struct QuantisedRows {
  QuantisedRows(const TestRows& x, DType dtype)
      : cols(dtype == DType::kF8E4M3 ? (x.view().cols + kMxBlock - 1) / kMxBlock * kMxBlock
                                     : x.view().cols),
        shape(scale_shape(dtype, cols)),
        codes(static_cast<size_t>(x.view().rows * cols)),
        scales(static_cast<size_t>(x.view().rows) * shape.row_bytes()),
        q(codes.data(), x.view().rows, cols, cols, dtype),
        q_scales(scales.data(), x.view().rows, shape.cols, shape.cols, shape.dtype) {
    std::vector<float> padded(codes.size());
    for (int64_t i = 0; i < x.view().rows; ++i) {
      for (int64_t j = 0; j < x.view().cols; ++j)
        padded[static_cast<size_t>(i * cols + j)] = x.at(i, j);
    }
    quantize_rows(ConstRows(padded.data(), x.view().rows, cols), q, q_scales);
  }

  int8_t code(int64_t i, int64_t j) const {
    return static_cast<int8_t>(codes[static_cast<size_t>(i * cols + j)]);
  }

  int64_t cols;
  ScaleShape shape;
  std::vector<std::byte> codes, scales;
  Rows q, q_scales;
};

// What products with weights of this format read of x.
inline Matrix multiplied_rows(const TestRows& x, WeightFormat format) {
  const int64_t rows = x.view().rows, cols = x.view().cols;
  const DType dtype = format.quantized_rows();
  Matrix result(rows, cols);
  const auto fill = [&](const auto& value) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) result.row(i)[j] = value(i, j);
    }
    return result;
  };
  if (dtype == DType::kI8) {
    const QuantisedRows q(x, dtype);
    return fill([&](int64_t i, int64_t j) {
      return q.code(i, j) * static_cast<double>(*q.q_scales.row_as<float>(i));
    });
  }
  if (dtype == DType::kF8E4M3) {
    const QuantisedRows q(x, dtype);
    return fill([&](int64_t i, int64_t j) {
      const int scale = std::to_integer<int>(q.q_scales.row(i)[j / kMxBlock]);
      return std::ldexp(e4m3_value(static_cast<uint8_t>(q.code(i, j))), scale - 127);
    });
  }
  const bool rounds = format.scheme != Scheme::kBF16 && format.rows() == DType::kBF16;
  return fill([&](int64_t i, int64_t j) {
    return static_cast<double>(rounds ? to_float(to_bf16(x.at(i, j))) : x.at(i, j));
  });
}

}  // namespace trimtab::test
