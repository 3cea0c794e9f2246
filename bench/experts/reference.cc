// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/reference.h"

#include <algorithm>
#include <cmath>

#include "base/quantize_rows.h"
#include "experts/encode.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

constexpr double kUnit = 0x1p-24;        // of f32
constexpr double kSiluSlope = 1.1;       // its derivative lies in [-0.1, 1.1]
constexpr double kSiluRoundings = 16;    // of the kernels' exp, sum, division and product
constexpr double kTinyFloat = 0x1p-126;  // below it, results may be flushed to zero

double read(const std::byte* p, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(p)[i];
  return to_float(reinterpret_cast<const bf16_t*>(p)[i]);
}

}  // namespace

Uncertain exact_row(const WeightDType& dtype, ConstRows x, int64_t i) {
  Uncertain row;
  row.errors.assign(x.cols, 0.0);
  const DType quantized = dtype.weights.quantized_rows();
  const ScaleShape shape = scale_shape(quantized, x.cols);
  if (shape.cols == 0) {
    for (int64_t j = 0; j < x.cols; ++j) row.values.push_back(read(x.row(i), x.dtype, j));
    return row;
  }
  const size_t cols = x.cols;
  std::vector<std::byte> codes(cols), scales(shape.row_bytes());
  std::vector<float> values(cols);
  const Rows q(codes.data(), 1, x.cols, x.cols, quantized),
      s(scales.data(), 1, shape.cols, shape.cols, shape.dtype);
  quantize_rows(x.slice(i, 1), q, s);
  dequantize_rows(q, s, Rows(values.data(), 1, x.cols));
  row.values.assign(values.begin(), values.end());
  return row;
}

std::vector<double> stored_row(const WeightDType& dtype, const MatrixSource& source, int64_t row) {
  const Storage layout = storage(dtype.weights, source.cols);
  const size_t groups = layout.groups();
  std::vector<std::byte> codes(cells(layout.padded_in) * sizeof(float));
  std::vector<std::byte> scales(groups * cells(layout.scale_bytes));
  RowEncoder(source, dtype.weights, layout).encode(row, codes.data(), scales.data(), nullptr);
  const auto scale = [&](int64_t j) {
    const int64_t group = j / layout.group;
    if (layout.scale_bytes == 1) return std::ldexp(1.0, std::to_integer<int>(scales[group]) - 127);
    return read(scales.data(), DType::kF32, group);
  };
  const int zero = zero_code(dtype.weights);
  std::vector<double> out;
  for (int64_t j = 0; j < source.cols; ++j) {
    const auto code = std::to_integer<uint8_t>(codes[j]);
    switch (dtype.weights.scheme) {
      case Scheme::kF32:
        out.push_back(read(codes.data(), DType::kF32, j));
        break;
      case Scheme::kBF16:
        out.push_back(read(codes.data(), DType::kBF16, j));
        break;
      case Scheme::kF16:
        out.push_back(to_float(reinterpret_cast<const f16_t*>(codes.data())[j]));
        break;
      case Scheme::kW8A8:
      case Scheme::kW4A8:
      case Scheme::kW4A16:
      case Scheme::kW8A16:
        out.push_back((code - zero) * scale(j));
        break;
      case Scheme::kMXFP8:
      case Scheme::kFP8:
        out.push_back(to_float(e4m3_t{code}) * scale(j));
        break;
      case Scheme::kMXFP4:
        out.push_back(to_float(e2m1_t{code}) * scale(j));
        break;
    }
  }
  return out;
}

Estimate product(std::span<const double> w, const Uncertain& x) {
  double sum = 0, magnitudes = 0, error_squares = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double term = w[i] * x.values[i], error = w[i] * x.errors[i];
    sum += term;
    magnitudes += std::abs(term);
    error_squares += error * error;
  }
  const double of_sum = static_cast<double>(w.size() + 2) * kUnit * magnitudes;
  const double of_inputs = kSigmas * std::sqrt(error_squares);
  return {sum, of_sum + of_inputs + kTinyFloat};
}

Estimate gated(const WeightDType& dtype, std::span<const double> gate, std::span<const double> up,
               const Uncertain& x) {
  const Estimate g = product(gate, x), u = product(up, x);
  const double silu = g.value / (1 + std::exp(-g.value)), value = silu * u.value;
  const double silu_error = kSiluSlope * g.tolerance;
  const double of_products =
      silu_error * std::abs(u.value) + std::abs(silu) * u.tolerance + silu_error * u.tolerance;
  return {value, of_products +
                     (dtype.rows_unit + kSiluRoundings * kUnit) * (std::abs(value) + of_products)};
}

void quantize(const WeightDType& dtype, Uncertain& x) {
  double largest = 0;
  for (const double value : x.values) largest = std::max(largest, std::abs(value));
  // int8 has equal steps for a row; e4m3 has steps in proportion, down to the smallest of its
  // blocks.
  const bool proportional = dtype.weights.quantized_rows() == DType::kF8E4M3;
  for (size_t i = 0; i < x.values.size(); ++i) {
    const double scale =
        proportional ? std::max(std::abs(x.values[i]), 0x1p-12 * largest) : largest;
    x.errors[i] = std::hypot(x.errors[i], dtype.x_unit * scale);
  }
}

}  // namespace trimtab::bench
