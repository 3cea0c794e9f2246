// SPDX-License-Identifier: Apache-2.0
// Shared experts that are placed and dispatched like the routed ones. DeepSeek stores all shared
// experts of a layer as one MLP, which is the sum of parts of the routed experts' width: rows of
// gate and up, columns of down.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/cat.h"
#include "experts/source_slice.h"
#include "trimtab/checkpoint.h"

namespace trimtab {
namespace {

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
  constexpr const char* kWhat = "shared experts";
  std::vector<MlpSource> parts;
  for (int64_t first = 0; first < total; first += width) {
    MlpSource part = whole;
    part.gate = rows_of(whole.gate, first, width, kWhat);
    part.up = rows_of(whole.up, first, width, kWhat);
    part.down = cols_of(whole.down, first, width, kWhat);
    part.gate_bias = slice_of(whole.gate_bias, first, width);
    part.up_bias = slice_of(whole.up_bias, first, width);
    parts.push_back(part);
  }
  check_sum(whole, parts, config.activation);
  return parts;
}

}  // namespace trimtab
