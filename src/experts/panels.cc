// SPDX-License-Identifier: Apache-2.0
#include "experts/panels.h"

#include <algorithm>

#include "base/cat.h"
#include "experts/isa.h"
#include "experts/pack.h"
#include "experts/source.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Puts a matrix and its bias into the panels from this column of each on.
void fill(PackedWeights& weights, const MatrixSource& source, const VectorSource& bias, int column) {
  const size_t element_bytes = static_cast<size_t>(bits(weights.dtype)) / 8;
  for (int64_t p = 0; p < num_panels(weights); ++p) {
    const Panel to = panel(weights, p);
    const int64_t first_weight = to.offset * weights.in + column;
    std::byte* out = weights.panels.data() + static_cast<size_t>(first_weight) * element_bytes;
    pack_columns(source, to.first, to.cols, to.width, weights.dtype, out);
    if (bias.data == nullptr) continue;
    for (int c = 0; c < to.cols; ++c) weights.bias.as<float>()[to.offset + column + c] = bias.at(to.first + c);
  }
}

PackedWeights allocate(int64_t in, int64_t out, DType dtype, bool gated, bool with_bias, const GemmKernels* kernels) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw InvalidArgument(cat("weights are stored as F32 or BF16, not ", name(dtype)));
  }
  PackedWeights weights;
  weights.kernels = kernels == nullptr ? &chosen_kernels() : kernels;
  weights.in = in;
  weights.out = out;
  weights.dtype = dtype;
  weights.gated = gated;
  const Panel last = panel(weights, num_panels(weights) - 1);
  const size_t columns = static_cast<size_t>(last.offset + last.width);
  weights.panels = Buffer(columns * static_cast<size_t>(in) * static_cast<size_t>(bits(dtype) / 8));
  if (with_bias) weights.bias = Buffer(columns * sizeof(float));
  return weights;
}

int outputs_per_panel(const PackedWeights& weights) {
  return weights.gated ? weights.kernels->panel_width / 2 : weights.kernels->panel_width;
}

}  // namespace

int64_t num_panels(const PackedWeights& weights) {
  const int each = outputs_per_panel(weights);
  return (weights.out + each - 1) / each;
}

Panel panel(const PackedWeights& weights, int64_t index) {
  const GemmKernels& kernels = *weights.kernels;
  const int each = outputs_per_panel(weights);
  const int64_t first = index * each;
  const int cols = static_cast<int>(std::min<int64_t>(each, weights.out - first));
  const bool narrow = !weights.gated && cols <= kernels.lanes;
  return {first, cols, narrow ? kernels.lanes : kernels.panel_width, index * kernels.panel_width};
}

PackedWeights pack_linear(const MatrixSource& weight, const VectorSource& bias, DType dtype,
                          const GemmKernels* kernels) {
  check_source(weight, "a weight");
  check_source(bias, weight.rows, "a bias");
  PackedWeights packed = allocate(weight.cols, weight.rows, dtype, false, bias.data != nullptr, kernels);
  fill(packed, weight, bias, 0);
  return packed;
}

PackedWeights pack_gated(const MlpSource& source, DType dtype, const GemmKernels* kernels) {
  check_source(source.gate, "the gate weight");
  const int64_t intermediate = source.gate.rows, hidden = source.gate.cols;
  check_source(source.up, intermediate, hidden, "the up weight");
  check_source(source.gate_bias, intermediate, "the gate bias");
  check_source(source.up_bias, intermediate, "the up bias");
  if ((source.gate_bias.data == nullptr) != (source.up_bias.data == nullptr)) {
    throw InvalidArgument("gate and up must have a bias both or neither");
  }
  PackedWeights packed = allocate(hidden, intermediate, dtype, true, source.gate_bias.data != nullptr, kernels);
  fill(packed, source.gate, source.gate_bias, 0);
  fill(packed, source.up, source.up_bias, packed.kernels->panel_width / 2);
  return packed;
}

}  // namespace trimtab
