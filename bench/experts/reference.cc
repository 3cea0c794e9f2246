// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/reference.h"

#include <algorithm>
#include <cmath>

namespace trimtab::bench {
namespace {

constexpr double kUnit = 0x1p-24;        // of f32
constexpr double kSiluSlope = 1.1;       // its derivative lies in [-0.1, 1.1]
constexpr double kSiluRoundings = 16;    // of the kernels' exp, sum, division and product
constexpr double kTinyFloat = 0x1p-126;  // below it, results may be flushed to zero

}  // namespace

Uncertain exact_row(ConstRows x, int64_t i) {
  Uncertain row;
  for (int64_t j = 0; j < x.cols; ++j) {
    const float value = x.dtype == DType::kF32 ? x.row_as<float>(i)[j] : to_float(x.row_as<bf16_t>(i)[j]);
    row.values.push_back(static_cast<double>(value));
  }
  row.errors.assign(row.values.size(), 0.0);
  return row;
}

std::vector<double> stored_row(const WeightDType& dtype, const MatrixSource& source, int64_t row) {
  std::vector<double> out(static_cast<size_t>(source.cols));
  dtype.stored_row(source, row, out);
  return out;
}

Estimate product(const WeightDType& dtype, std::span<const double> w, const Uncertain& x) {
  double sum = 0, magnitudes = 0, squares = 0, error_squares = 0, largest = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    const double term = w[i] * x.values[i], error = w[i] * x.errors[i];
    sum += term;
    magnitudes += std::abs(term);
    squares += w[i] * w[i];
    error_squares += error * error;
    largest = std::max(largest, std::abs(x.values[i]));
  }
  const double of_sum = static_cast<double>(w.size() + 2) * kUnit * magnitudes;
  const double of_inputs = kSigmas * (std::sqrt(error_squares) + dtype.x_unit * largest * std::sqrt(squares));
  return {sum, of_sum + of_inputs + kTinyFloat};
}

Estimate gated(const WeightDType& dtype, std::span<const double> gate, std::span<const double> up, const Uncertain& x) {
  const Estimate g = product(dtype, gate, x), u = product(dtype, up, x);
  const double silu = g.value / (1 + std::exp(-g.value)), value = silu * u.value;
  const double silu_error = kSiluSlope * g.tolerance;
  const double of_products = silu_error * std::abs(u.value) + std::abs(silu) * u.tolerance + silu_error * u.tolerance;
  return {value, of_products + (dtype.rows_unit + kSiluRoundings * kUnit) * (std::abs(value) + of_products)};
}

}  // namespace trimtab::bench
