// SPDX-License-Identifier: Apache-2.0
// Shared experts that are placed and dispatched like the routed ones. DeepSeek stores all shared
// experts of a layer as one MLP, which is the sum of parts of the routed experts' width: rows of
// gate and up, columns of down.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/cat.h"
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

std::string range(const char* what, int64_t first, int64_t count) {
  return cat("the ", what, " ", first, " to ", first + count - 1);
}

void move_data(MatrixSource& part, const MatrixSource& whole, int64_t row, int64_t col,
               const std::string& text) {
  const int64_t first_bit = whole.index(row, col) * bits(whole.dtype);
  if (first_bit % 8 != 0 || col % whole.cols_per_word != 0 ||
      (whole.even_rows_first && row % 8 != 0)) {
    throw InvalidArgument(cat("shared experts: ", text, " begin inside a byte or word"));
  }
  part.data += first_bit / 8;
}

MatrixSource some_rows(const MatrixSource& whole, int64_t first, int64_t count) {
  MatrixSource part = whole;
  part.rows = count;
  const std::string text = range("rows", first, count);
  move_data(part, whole, first, 0, text);
  if (!whole.is_quantised()) return part;
  Quantization& q = part.quantization;
  if (q.block_rows >= whole.rows) {
    q.block_rows = count;
    return part;
  }
  const int64_t block = first / q.block_rows;
  if (first % q.block_rows != 0 || block % q.zero_rows_per_word != 0)
    throw InvalidArgument(cat("shared experts: ", text, " begin inside a block of scales"));
  q.scales += block * q.scale_row_stride * bits(q.scale_dtype) / 8;
  if (q.zeros != nullptr) {
    q.zeros += block / q.zero_rows_per_word * q.zero_row_stride * bits(whole.dtype) / 8;
  }
  return part;
}

MatrixSource some_cols(const MatrixSource& whole, int64_t first, int64_t count) {
  MatrixSource part = whole;
  part.cols = count;
  const std::string text = range("columns", first, count);
  move_data(part, whole, 0, first, text);
  if (!whole.is_quantised()) return part;
  Quantization& q = part.quantization;
  if (q.column_blocks != nullptr) {
    throw InvalidArgument("shared experts: columns in another order can't be divided");
  }
  if (q.block_cols >= whole.cols) {
    q.block_cols = count;
    return part;
  }
  const int64_t block = first / q.block_cols;
  if (first % q.block_cols != 0)
    throw InvalidArgument(cat("shared experts: ", text, " begin inside a block of scales"));
  q.scales += block * q.scale_col_stride * bits(q.scale_dtype) / 8;
  if (q.zeros == nullptr) return part;
  const int64_t zero_bits = block * q.zero_col_stride * bits(whole.dtype);
  if (zero_bits % 8 != 0)
    throw InvalidArgument(cat("shared experts: ", text, " have zero points inside a byte"));
  q.zeros += zero_bits / 8;
  return part;
}

VectorSource some(const VectorSource& whole, int64_t first, int64_t count) {
  VectorSource part = whole;
  if (whole.data == nullptr) return part;
  part.data += first * whole.stride * bits(whole.dtype) / 8;
  part.size = count;
  return part;
}

// y = an MLP of x, in f32.
std::vector<float> apply(const MlpSource& source, Activation activation,
                         const std::vector<float>& x, Team& team) {
  const Mlp mlp(source, activation, Scheme::kF32);
  const Buffer scratch(mlp.scratch_bytes(1));
  const std::span<std::byte> bytes(scratch.data(), scratch.bytes());
  std::vector<float> act(mlp.intermediate()), y(mlp.hidden());
  mlp.gate_up(ConstRows(x.data(), 1, std::ssize(x)), Rows(act.data(), 1, std::ssize(act)), bytes,
              team);
  mlp.down(ConstRows(act.data(), 1, std::ssize(act)), Rows(y.data(), 1, std::ssize(y)), bytes,
           team);
  return y;
}

// Do the parts add up to the whole, on a random row?
void check_sum(const MlpSource& whole, const std::vector<MlpSource>& parts, Activation activation) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(whole.gate.cols);
  for (float& value : x) value = normal(random);
  Team team(1);
  const std::vector<float> want = apply(whole, activation, x, team);
  std::vector<double> sum(want.size()), magnitudes(want.size());
  for (const MlpSource& part : parts) {
    const std::vector<float> y = apply(part, activation, x, team);
    for (size_t i = 0; i < y.size(); ++i) {
      sum[i] += double{y[i]};
      magnitudes[i] += std::abs(double{y[i]});
    }
  }
  const double size = *std::ranges::max_element(magnitudes);
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(sum[i] - double{want[i]});
    // Sums in f32 in another order. NaN is no less than anything.
    if (error <= 1e-4 * size) continue;
    throw InvalidArgument(cat("shared experts: ", parts.size(), " parts differ from the whole by ",
                              error, " of ", size));
  }
}

}  // namespace

std::vector<MlpSource> appended_experts(const ModelConfig& config, const MoeTensors& layer) {
  if (!layer.shared) return {};
  const MlpSource& whole = *layer.shared;
  const int64_t width = config.moe_intermediate_size, total = whole.gate.rows;
  if (layer.shared_gate) {
    throw InvalidArgument(cat(layer.name, ": shared experts with a gate of their own have other ",
                              "weights than 1 and can't be appended"));
  }
  if (total % width != 0) {
    throw InvalidArgument(cat(layer.name, ": shared experts of width ", total,
                              " are no multiple of the routed experts' ", width));
  }
  if (whole.down_bias.data != nullptr && total > width)
    throw InvalidArgument(cat(layer.name, ": shared experts have one bias for all of them"));
  std::vector<MlpSource> parts;
  for (int64_t first = 0; first < total; first += width) {
    MlpSource part = whole;
    part.gate = some_rows(whole.gate, first, width);
    part.up = some_rows(whole.up, first, width);
    part.down = some_cols(whole.down, first, width);
    part.gate_bias = some(whole.gate_bias, first, width);
    part.up_bias = some(whole.up_bias, first, width);
    parts.push_back(part);
  }
  check_sum(whole, parts, config.activation);
  return parts;
}

}  // namespace trimtab
