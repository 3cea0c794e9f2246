// SPDX-License-Identifier: Apache-2.0
#include "experts/product.h"

#include <algorithm>
#include <new>
#include <thread>

#include "base/cat.h"
#include "experts/gemm.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

size_t element_bytes(DType dtype) {
  return static_cast<size_t>(bits(dtype)) / 8;
}

Product unpacked(Product product) {
  if (product == kInt4Product) return kInt8Product;
  return product == kFP8Product ? kBF16GroupProduct : kBF16Product;
}

// Panels that are one item: enough to keep the team from queueing for items, and few enough to share a part evenly.
int64_t panels_of_item(int64_t panels, int64_t rows_of_part) {
  // A panel of 2048 x 32 bf16 weights takes 4 us from memory, and as long again for every 8 rows.
  const int64_t wanted = std::max<int64_t>(1, 8 / (1 + rows_of_part / 8));
  return std::min(wanted, panels);
}

void wait_for(const std::atomic<int32_t>& count, int64_t wanted) noexcept {
  // Whoever does the work may have lost its core: after about a microsecond let it have this one.
  for (int spins = 0; count.load(std::memory_order_acquire) < wanted; ++spins) {
    if (spins > 256) std::this_thread::yield();
  }
}

}  // namespace

void check_product(const PackedWeights& weights, const ConstRows& x, const ConstRows& out, DType out_dtype,
                   std::string_view what) {
  if (weights.kernels == nullptr) throw InvalidArgument(cat(what, ": no weights"));
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) {
    throw InvalidArgument(cat(what, ": x must be F32 or BF16, not ", name(x.dtype)));
  }
  if (out.dtype != out_dtype) {
    throw InvalidArgument(cat(what, ": the output must be ", name(out_dtype), ", not ", name(out.dtype)));
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

size_t unpack_scratch(const PackedWeights& weights) {
  const Storage s = storage(weights.format, weights.in);
  if (weights.kernels->unpack[s.product] == nullptr) return 0;
  return static_cast<size_t>(s.steps() * 4 * weights.kernels->width);
}

void multiply_panels(const PackedWeights& weights, Product product, PanelRange panels, PanelTask task, const Rows& out,
                     Activation activation, std::byte* scratch) noexcept {
  const GemmKernels& kernels = *weights.kernels;
  const Storage s = storage(weights.format, weights.in);
  task.steps = s.steps();
  task.group_steps = s.group / s.step_inputs;
  task.zero = zero_code(weights.format);
  task.out_stride = static_cast<size_t>(out.stride) * element_bytes(out.dtype);
  task.out_bf16 = out.dtype == DType::kBF16;
  task.activation = static_cast<int>(activation.kind);
  task.alpha = activation.alpha;
  task.limit = activation.limit;
  task.beta = activation.beta;
  // Weights that several tiles read are worth unpacking once; others are decoded on their way to the registers.
  const auto& runs = weights.gated ? kernels.gated : kernels.linear;
  const bool unpacks =
      kernels.unpack[product] != nullptr && (runs[product] == nullptr || task.m > kernels.max_rows[product]);
  const GemmKernels::Run run = runs[unpacks ? unpacked(product) : product];
  const size_t bytes = panel_bytes(weights);
  const int64_t width = kernels.width;
  for (int64_t p = panels.first; p < panels.first + panels.count; ++p) {
    const Panel part = panel(weights, p);
    const int64_t scale = p * s.groups() * width;
    task.panel = weights.panels.data() + static_cast<size_t>(p) * bytes;
    task.next_panel = p + 1 < num_panels(weights) ? task.panel + bytes : nullptr;
    task.next_bytes = bytes;
    task.weight_scales = weights.scales.data() + scale * s.scale_bytes;
    task.zeros = weights.zeros.bytes() == 0 ? nullptr : weights.zeros.as<int32_t>() + scale;
    task.bias = weights.bias.bytes() == 0 ? nullptr : weights.bias.as<float>() + p * width;
    task.cols = part.cols;
    task.out = out.data + static_cast<size_t>(part.first) * element_bytes(out.dtype);
    if (unpacks) {
      kernels.unpack[product](task, scratch);
      task.panel = scratch;
    }
    run(task);
  }
}

Half::Half(Which which, std::span<Part> parts, const RowSource& x, Rows out, Carver& carver)
    : which_(which),
      parts_(parts),
      operand_(weights(parts.front()), x, carver),
      out_(out),
      panels_(num_panels(weights(parts.front()))),
      group_panels_(panels_of_item(panels_, x.x.rows / std::ssize(parts))),
      groups_((panels_ + group_panels_ - 1) / group_panels_),
      progress_(carver.take<Progress>(std::ssize(parts)).data()) {
  for (size_t p = 0; p < parts.size(); ++p) {
    new (progress_ + p) Progress{{0}, {0}};
    parts_[p].first_tile = prepare_items_;
    prepare_items_ += operand_.tiles(parts_[p].count);
  }
}

size_t Half::bytes(const PackedWeights& weights, int64_t parts, int64_t rows, DType x) {
  return Operand::bytes(weights, rows, x) + Workspace::padded(static_cast<size_t>(parts) * sizeof(Progress));
}

size_t Half::scratch() const {
  return std::max(operand_.prepare_scratch(), unpack_scratch(weights(parts_.front())));
}

void Half::run(int64_t item, const Half* before, std::byte* scratch) const noexcept {
  if (item < prepare_items_) {
    prepare(item, before, scratch);
  } else {
    multiply((item - prepare_items_) / groups_, (item - prepare_items_) % groups_, before, scratch);
  }
}

void Half::prepare(int64_t tile, const Half* before, std::byte* scratch) const noexcept {
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), tile,
                                     [](int64_t t, const Part& part) { return t < part.first_tile; });
  const auto p = static_cast<size_t>(next - parts_.begin()) - 1;
  const Part& part = parts_[p];
  if (before != nullptr) before->wait_until_finished(p);
  const int64_t tiles = operand_.tiles(part.count), t = tile - part.first_tile;
  const int64_t first = tile_first(part.count, tiles, t), end = tile_first(part.count, tiles, t + 1);
  operand_.prepare(part.first + first, end - first, operand_.packed(part.count), scratch);
  progress_[p].tiles.fetch_add(1, std::memory_order_release);
}

void Half::multiply(int64_t p, int64_t group, const Half* before, std::byte* scratch) const noexcept {
  const Part& part = parts_[static_cast<size_t>(p)];
  Progress& progress = progress_[p];
  // Rows that are read in place have no tiles to wait for.
  if (operand_.tiles(part.count) == 0 && before != nullptr) before->wait_until_finished(static_cast<size_t>(p));
  wait_for(progress.tiles, operand_.tiles(part.count));
  PanelTask task = {};
  operand_.fill(task, part.first, part.count);
  const int64_t first = group * group_panels_;
  multiply_panels(weights(part), operand_.product(), {first, std::min(group_panels_, panels_ - first)}, task,
                  out_.slice(part.first, part.count), part.mlp->activation(), scratch);
  progress.groups.fetch_add(1, std::memory_order_release);
}

void Half::wait_until_finished(size_t part) const noexcept {
  wait_for(progress_[part].groups, groups_);
}

void run_halves(std::span<const Half> halves, int64_t multiply_adds, Team& team) {
  int64_t items = 0;
  size_t scratch = 0;
  for (const Half& half : halves) {
    items += half.items();
    scratch = std::max(scratch, half.scratch());
  }
  team.reserve_scratch(scratch);
  const auto run = [&](int64_t item, int member) noexcept {
    const Half* before = nullptr;
    for (const Half& half : halves) {
      if (item < half.items()) return half.run(item, before, team.scratch(member));
      item -= half.items();
      before = &half;
    }
  };
  share(team, items, multiply_adds, run);
}

}  // namespace trimtab
