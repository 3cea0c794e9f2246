// SPDX-License-Identifier: Apache-2.0
#include "experts/product_pipeline.h"

#include <algorithm>
#include <new>
#include <thread>

#include "base/cat.h"
#include "base/rows.h"
#include "experts/gemm.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

Product unpacked(Product product) {
  if (product == kInt4Product) return kInt8Product;
  const bool grouped =
      product == kFP8Product || product == kInt4BF16Product || product == kInt8BF16Product;
  return grouped ? kBF16GroupProduct : kBF16Product;
}

void wait_for(const std::atomic<int32_t>& count, int64_t wanted) noexcept {
  // Whoever does the work may have lost its core: after about a microsecond let it have this one.
  for (int spins = 0; count.load(std::memory_order_acquire) < wanted; ++spins) {
    if (spins > 256) std::this_thread::yield();
  }
}

}  // namespace

void check_product(const PackedWeights& weights, const ConstRows& x, const ConstRows& out,
                   DType out_dtype, std::string_view what) {
  if (weights.kernels == nullptr || weights.panels.data() == nullptr)
    throw InvalidArgument(cat(what, ": no weights"));
  if (x.dtype != DType::kF32 && x.dtype != DType::kBF16) {
    throw InvalidArgument(cat(what, ": x must be F32 or BF16, not ", name(x.dtype)));
  }
  if (out.dtype != out_dtype) {
    throw InvalidArgument(
        cat(what, ": the output must be ", name(out_dtype), ", not ", name(out.dtype)));
  }
  if (x.cols != weights.in || out.cols != weights.out || out.rows != x.rows || x.rows < 0) {
    throw InvalidArgument(cat(what, " maps [m, ", weights.in, "] to [m, ", weights.out, "]; got [",
                              x.rows, ", ", x.cols, "] and [", out.rows, ", ", out.cols, "]"));
  }
  if (overlap(x, out)) throw InvalidArgument(cat(what, ": x and the output overlap"));
  if (x.rows > 1 && (x.stride < x.cols || out.stride < out.cols)) {
    throw InvalidArgument(cat(what, ": rows overlap: strides ", x.stride, " and ", out.stride,
                              " for ", x.cols, " and ", out.cols, " columns"));
  }
}

void check_scratch(std::string_view what, size_t needed, const ConstRows& x, const ConstRows& out,
                   std::span<std::byte> scratch) {
  if (scratch.size() < needed || reinterpret_cast<uintptr_t>(scratch.data()) % 64 != 0) {
    throw InvalidArgument(cat(what, ": ", needed,
                              " bytes of scratch, 64-byte aligned, are needed, got ",
                              scratch.size(), " at ", static_cast<const void*>(scratch.data())));
  }
  if (x.rows > 0 && (overlap(x, scratch) || overlap(out, scratch)))
    throw InvalidArgument(cat(what, ": scratch overlaps x or the output"));
}

int64_t panels_of_item(int64_t panels, int64_t rows_of_part, int team_size) {
  // A panel of 2048 x 32 bf16 weights takes 4 us from memory, and as long again for every 8 rows.
  const int64_t for_queue = 8 / (1 + rows_of_part / 8);
  // Of panels side by side a thread fetches the next one while it works on one; a few in a row are
  // 15 % faster than one.
  constexpr int64_t kInARow = 4, kItemsOfAMember = 2;
  const int64_t in_a_row = std::min(kInARow, panels / (kItemsOfAMember * team_size));
  return std::clamp<int64_t>(std::max(for_queue, in_a_row), 1, panels);
}

size_t unpack_scratch(const PackedWeights& weights) {
  const Storage s = storage(weights.format, weights.in);
  if (weights.kernels->unpack[s.product] == nullptr) return 0;
  return cells(s.steps(), 4, weights.kernels->width);
}

void multiply_panels(const PackedWeights& weights, Product product, PanelRange panels,
                     PanelTask task, const Rows& out, Activation activation,
                     std::byte* scratch) noexcept {
  const GemmKernels& kernels = *weights.kernels;
  const Storage s = storage(weights.format, weights.in);
  task.steps = s.steps();
  const int64_t sum_group = s.sum_group == 0 ? s.group : s.sum_group;
  task.group_steps = sum_group / s.step_inputs;
  task.groups_of_scale = s.group / sum_group;
  task.zero = zero_code(weights.format);
  task.out_stride = shape_bytes(out.dtype, out.stride);
  task.out_bf16 = out.dtype == DType::kBF16;
  task.activation = static_cast<int>(activation.kind);
  task.alpha = activation.alpha;
  task.limit = activation.limit;
  task.beta = activation.beta;
  // Weights that several tiles read are worth unpacking once; others are decoded on their way to
  // the registers.
  const auto& runs = weights.gated ? kernels.gated : kernels.linear;
  const bool unpacks =
      kernels.unpack[product] != nullptr && task.m > kernels.max_decoded_rows[product];
  const GemmKernels::Run run = runs[unpacks ? unpacked(product) : product];
  const size_t bytes = panel_bytes(weights);
  const int64_t width = kernels.width;
  for (int64_t p = panels.first; p < panels.first + panels.count; ++p) {
    const Panel part = panel(weights, p);
    const int64_t scale = p * s.groups() * width;
    task.panel = weights.panels.data() + cells(p, bytes);
    const int64_t next = p + 1 < panels.first + panels.count ? p + 1 : panels.then;
    task.next_panel =
        next < num_panels(weights) ? weights.panels.data() + cells(next, bytes) : nullptr;
    task.next_bytes = bytes;
    task.weight_scales = weights.scales.data() + scale * s.scale_bytes;
    task.zeros = weights.zeros.bytes() == 0 ? nullptr : weights.zeros.data() + scale * s.zero_bytes;
    task.bias = weights.bias.bytes() == 0 ? nullptr : weights.bias.as<float>() + p * width;
    task.cols = part.cols;
    task.out = out.data + shape_bytes(out.dtype, part.first);
    if (unpacks) {
      kernels.unpack[product](task, scratch);
      task.panel = scratch;
    }
    run(task);
  }
}

PipelinedProduct::PipelinedProduct(MlpHalf half, std::span<const ExpertRows> parts,
                                   const RowSource& x, Rows out, int team_size, Carver& carver,
                                   std::span<const float> row_weights)
    : half_(half),
      parts_(parts),
      operand_(weights(parts.front()), x, carver),
      out_(out),
      row_weights_(row_weights),
      team_size_(team_size),
      panels_(num_panels(weights(parts.front()))),
      group_panels_(panels_of_item(panels_, x.x.rows / std::ssize(parts), team_size)),
      groups_((panels_ + group_panels_ - 1) / group_panels_),
      progress_(carver.take<Progress>(std::ssize(parts)).data()) {
  for (int64_t p = 0; p < num_parts(); ++p) {
    new (progress_ + p) Progress{{0}, {0}, tiles_};
    tiles_ += operand_.tiles(parts_[p].count);
  }
}

size_t PipelinedProduct::bytes(const PackedWeights& weights, int64_t parts, int64_t rows, DType x) {
  return Operand::bytes(weights, rows, x) + Workspace::padded(cells(parts, sizeof(Progress)));
}

int64_t PipelinedProduct::items_before(Step step, int64_t part) const {
  if (step == Step::kMultiply) return part * groups_;
  return part < num_parts() ? progress_[part].first_tile : tiles_;
}

size_t PipelinedProduct::scratch() const {
  return std::max(operand_.prepare_scratch(), unpack_scratch(weights(parts_.front())));
}

void PipelinedProduct::run(Step step, int64_t part, int64_t item, const PipelinedProduct* before,
                           std::byte* scratch) const noexcept {
  if (step == Step::kPrepare) {
    prepare(part, item, before, scratch);
  } else {
    multiply(part, item, before, scratch);
  }
}

void PipelinedProduct::prepare(int64_t p, int64_t tile, const PipelinedProduct* before,
                               std::byte* scratch) const noexcept {
  const ExpertRows& part = parts_[p];
  if (before != nullptr) before->wait_until_finished(p);
  const int64_t tiles = operand_.tiles(part.count);
  const int64_t first = tile_first(part.count, tiles, tile),
                end = tile_first(part.count, tiles, tile + 1);
  operand_.prepare(weights(part), part.first + first, end - first, operand_.packed(part.count),
                   scratch);
  progress_[p].tiles.fetch_add(1, std::memory_order_release);
}

void PipelinedProduct::multiply(int64_t p, int64_t group, const PipelinedProduct* before,
                                std::byte* scratch) const noexcept {
  const ExpertRows& part = parts_[p];
  // Rows that are read in place have no tiles to wait for.
  if (operand_.tiles(part.count) == 0 && before != nullptr) before->wait_until_finished(p);
  wait_for(progress_[p].tiles, operand_.tiles(part.count));
  PanelTask task = {};
  operand_.fill(task, part.first, part.count);
  // Members that are equally fast take every team_size-th group.
  const int64_t first = group * group_panels_, then = first + team_size_ * group_panels_;
  const PanelRange panels{first, std::min(group_panels_, panels_ - first), then};
  multiply_panels(weights(part), operand_.product(), panels, task,
                  out_.slice(part.first, part.count), part.mlp->activation(), scratch);
  if (!row_weights_.empty()) weigh(part, panels);
  progress_[p].groups.fetch_add(1, std::memory_order_release);
}

void PipelinedProduct::weigh(const ExpertRows& part, PanelRange panels) const noexcept {
  const int64_t begin = panel(weights(part), panels.first).first;
  const Panel last = panel(weights(part), panels.first + panels.count - 1);
  for (int64_t i = part.first; i < part.first + part.count; ++i) {
    float* const row = out_.row_as<float>(i);
    for (int64_t col = begin; col < last.first + last.cols; ++col) row[col] *= row_weights_[i];
  }
}

void PipelinedProduct::wait_until_finished(int64_t part) const noexcept {
  wait_for(progress_[part].groups, groups_);
}

namespace {

// Stage k of the pipeline is step k % 2 of product k / 2. In round r it works on part r - k: what
// an item waits for was begun in an earlier round, and a round is long enough for it to be done by
// then.
class Pipeline {
 public:
  explicit Pipeline(std::span<const PipelinedProduct> products)
      : products_(products),
        stages_(2 * std::ssize(products)),
        rounds_(products.front().num_parts() + stages_ - 1) {}

  int64_t items() const { return items_before(rounds_); }
  void run(int64_t item, std::byte* scratch) const noexcept {
    int64_t round = 0;
    for (int64_t end = rounds_; end - round > 1;) {
      const int64_t middle = round + (end - round) / 2;
      (items_before(middle) <= item ? round : end) = middle;
    }
    item -= items_before(round);
    for (int64_t k = 0; k < stages_; ++k) {
      const int64_t items = items_before(k, round + 1) - items_before(k, round);
      if (item < items) {
        const PipelinedProduct* const before = k < 2 ? nullptr : &products_[k / 2 - 1];
        return products_[k / 2].run(step(k), round - k, item, before, scratch);
      }
      item -= items;
    }
  }

 private:
  using Step = PipelinedProduct::Step;

  static Step step(int64_t k) { return k % 2 == 0 ? Step::kPrepare : Step::kMultiply; }
  int64_t items_before(int64_t k, int64_t round) const {
    const PipelinedProduct& product = products_[k / 2];
    return product.items_before(step(k), std::clamp<int64_t>(round - k, 0, product.num_parts()));
  }
  int64_t items_before(int64_t round) const {
    int64_t items = 0;
    for (int64_t k = 0; k < stages_; ++k) items += items_before(k, round);
    return items;
  }

  std::span<const PipelinedProduct> products_;
  int64_t stages_, rounds_;
};

}  // namespace

void run_pipeline(std::span<const PipelinedProduct> products, int64_t multiply_adds, Team& team) {
  size_t scratch = 0;
  for (const PipelinedProduct& product : products) scratch = std::max(scratch, product.scratch());
  team.reserve_scratch(scratch);
  const Pipeline pipeline(products);
  for_each_item(team, pipeline.items(), multiply_adds, [&](int64_t item, int member) noexcept {
    pipeline.run(item, team.scratch(member));
  });
}

}  // namespace trimtab
