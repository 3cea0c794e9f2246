// SPDX-License-Identifier: Apache-2.0
// What the kernels should give, in double from the weights as their format keeps them, and how far
// from it they may be.
//
// Tolerances follow from norms. A sum of k products in f32, in any order, is off by at most (k + 2)
// u sum |w x| (Higham, Accuracy and Stability, 3.1). Errors of the inputs (roundings between the
// products, quantised rows) come from many independent roundings, so they add up as a norm: kSigmas
// times the root of the sum of their squares.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bench/experts/weight_dtype.h"

namespace trimtab::bench {

constexpr double kSigmas = 8;

// Numbers, each known up to an error.
struct Uncertain {
  std::vector<double> values, errors;
};

struct Estimate {
  double value = 0, tolerance = 0;
};

// Row i of x as the kernels multiply it, quantised if they do that, without errors.
Uncertain exact_row(const WeightDType& dtype, ConstRows x, int64_t i);
// What quantising does to a row that is not known exactly.
void quantize(const WeightDType& dtype, Uncertain& x);

// Row `row` of a matrix as the format keeps it.
std::vector<double> stored_row(const WeightDType& dtype, const MatrixSource& source, int64_t row);

// w x in the kernels' arithmetic.
Estimate product(std::span<const double> w, const Uncertain& x);

// silu(gate x) * (up x), rounded to the type of the rows.
Estimate gated(const WeightDType& dtype, std::span<const double> gate, std::span<const double> up,
               const Uncertain& x);

}  // namespace trimtab::bench
