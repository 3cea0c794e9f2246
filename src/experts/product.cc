// SPDX-License-Identifier: Apache-2.0
#include "experts/product.h"

#include "base/cat.h"
#include "experts/gemm.h"
#include "experts/panels.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

size_t element_bytes(DType dtype) {
  return static_cast<size_t>(bits(dtype)) / 8;
}

PanelTask make_task(const PackedWeights& weights, const Panel& panel, ConstRows x, Rows out) {
  PanelTask task = {};
  const int64_t first_weight = panel.offset * weights.in;
  task.panel = weights.panels.data() + static_cast<size_t>(first_weight) * element_bytes(weights.dtype);
  task.bias = weights.bias.bytes() == 0 ? nullptr : weights.bias.as<float>() + panel.offset;
  task.k = weights.in;
  task.width = panel.width;
  task.cols = panel.cols;
  task.x = x.data;
  task.m = x.rows;
  task.x_stride = static_cast<size_t>(x.stride) * element_bytes(x.dtype);
  task.out = out.data + static_cast<size_t>(panel.first) * element_bytes(out.dtype);
  task.out_stride = static_cast<size_t>(out.stride) * element_bytes(out.dtype);
  return task;
}

}  // namespace

void check_product(const PackedWeights& weights, ConstRows x, ConstRows out, std::string_view what) {
  if (weights.kernels == nullptr) throw InvalidArgument(cat(what, ": no weights"));
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) {
    throw InvalidArgument(cat(what, ": x must be F32 or BF16, not ", name(x.dtype)));
  }
  const DType wanted = weights.gated ? weights.dtype : DType::kF32;
  if (out.dtype != wanted) {
    throw InvalidArgument(cat(what, ": the output must be ", name(wanted), ", not ", name(out.dtype)));
  }
  if (x.cols != weights.in || out.cols != weights.out || out.rows != x.rows || x.rows < 0) {
    throw InvalidArgument(cat(what, " maps [m, ", weights.in, "] to [m, ", weights.out, "]; got [", x.rows, ", ",
                              x.cols, "] and [", out.rows, ", ", out.cols, "]"));
  }
  if (x.rows > 1 && (x.stride < x.cols || out.stride < out.cols)) {
    throw InvalidArgument(cat(what, ": rows overlap: strides ", x.stride, " and ", out.stride, " for ", x.cols, " and ",
                              out.cols, " columns"));
  }
}

void linear_panel(const PackedWeights& weights, int64_t index, ConstRows x, Rows y) noexcept {
  const PanelTask task = make_task(weights, panel(weights, index), x, y);
  weights.kernels->linear[weights.dtype == DType::kBF16][x.dtype == DType::kBF16](task);
}

void gated_panel(const PackedWeights& weights, int64_t index, Activation activation, ConstRows x, Rows act) noexcept {
  PanelTask task = make_task(weights, panel(weights, index), x, act);
  task.activation = static_cast<int>(activation.kind);
  task.alpha = activation.alpha;
  task.limit = activation.limit;
  weights.kernels->gated[weights.dtype == DType::kBF16][x.dtype == DType::kBF16](task);
}

}  // namespace trimtab
