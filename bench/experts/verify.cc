// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/verify.h"

#include <cmath>
#include <vector>

#include "base/cat.h"
#include "base/random.h"
#include "bench/experts/reference.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

constexpr int64_t kCheckedRows = 6;
constexpr int64_t kCheckedColumns = 48;
constexpr int64_t kCheckedTokens = 2;  // each costs whole experts

// Up to `most` of 0..count - 1, both ends among them; those between lie in even stretches, at
// random places of them.
std::vector<int64_t> sampled(int64_t count, int64_t most) {
  std::vector<int64_t> places;
  const int64_t wanted = std::min(count, most);
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t begin = count * i / wanted, end = count * (i + 1) / wanted;
    const int64_t offset = split_mix64(i) % (end - begin);
    places.push_back(i == 0 ? 0 : i + 1 == wanted ? count - 1 : begin + offset);
  }
  return places;
}

double element(ConstRows y, int64_t row, int64_t column) {
  return static_cast<double>(y.dtype == DType::kF32 ? y.row_as<float>(row)[column]
                                                    : to_float(y.row_as<bf16_t>(row)[column]));
}

void check(double got, const Estimate& expected, int64_t row, int64_t column,
           const std::string& what) {
  // Written so that NaN fails.
  if (std::abs(got - expected.value) <= expected.tolerance) return;
  throw Error(cat(what, " is wrong: row ", row, ", column ", column, " is ", got, ", should be ",
                  expected.value, " within ", expected.tolerance));
}

std::vector<Uncertain> exact_rows(const WeightDType& dtype, ConstRows x,
                                  const std::vector<int64_t>& rows) {
  std::vector<Uncertain> all;
  for (const int64_t row : rows) all.push_back(exact_row(dtype, x, row));
  return all;
}

// The activations of one expert for one token, each with the error that rounding it leaves.
Uncertain activations(const WeightDType& dtype, const MlpSource& mlp, const Uncertain& x) {
  Uncertain act;
  for (int64_t j = 0; j < mlp.gate.rows; ++j) {
    const Estimate one =
        gated(dtype, stored_row(dtype, mlp.gate, j), stored_row(dtype, mlp.up, j), x);
    act.values.push_back(one.value);
    act.errors.push_back(one.tolerance);
  }
  quantize(dtype, act);
  return act;
}

}  // namespace

void verify_linear(const WeightDType& dtype, const MatrixSource& weight, ConstRows x, ConstRows y,
                   const std::string& what) {
  const std::vector<int64_t> rows = sampled(y.rows, kCheckedRows);
  const std::vector<Uncertain> inputs = exact_rows(dtype, x, rows);
  for (const int64_t column : sampled(y.cols, kCheckedColumns)) {
    const std::vector<double> w = stored_row(dtype, weight, column);
    for (size_t r = 0; r < rows.size(); ++r) {
      check(element(y, rows[r], column), product(w, inputs[r]), rows[r], column, what);
    }
  }
}

void verify_gated(const WeightDType& dtype, const MlpSource& mlp, ConstRows x, ConstRows act,
                  const std::string& what) {
  const std::vector<int64_t> rows = sampled(act.rows, kCheckedRows);
  const std::vector<Uncertain> inputs = exact_rows(dtype, x, rows);
  for (const int64_t column : sampled(act.cols, kCheckedColumns)) {
    const std::vector<double> gate = stored_row(dtype, mlp.gate, column),
                              up = stored_row(dtype, mlp.up, column);
    for (size_t r = 0; r < rows.size(); ++r) {
      check(element(act, rows[r], column), gated(dtype, gate, up, inputs[r]), rows[r], column,
            what);
    }
  }
}

void verify_layer(const WeightDType& dtype, const std::function<MlpSource(int32_t)>& mlp_of,
                  ConstRows x, std::span<const int32_t> ids, std::span<const float> weights,
                  int top_k, ConstRows out, const std::string& what) {
  const std::vector<int64_t> columns = sampled(out.cols, kCheckedColumns);
  for (const int64_t token : sampled(out.rows, kCheckedTokens)) {
    const Uncertain input = exact_row(dtype, x, token);
    std::vector<Estimate> sums(columns.size());
    for (int64_t pick = token * top_k; pick < (token + 1) * top_k; ++pick) {
      const MlpSource mlp = mlp_of(ids[pick]);
      const double weight = weights[pick];
      const Uncertain act = activations(dtype, mlp, input);
      for (size_t c = 0; c < columns.size(); ++c) {
        const Estimate y = product(stored_row(dtype, mlp.down, columns[c]), act);
        sums[c].value += weight * y.value;
        // The weighted sum itself is rounded, top_k products and additions in f32.
        sums[c].tolerance += weight * (y.tolerance + (top_k + 1) * 0x1p-24 * std::abs(y.value));
      }
    }
    for (size_t c = 0; c < columns.size(); ++c)
      check(element(out, token, columns[c]), sums[c], token, columns[c], what);
  }
}

}  // namespace trimtab::bench
