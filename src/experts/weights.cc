// SPDX-License-Identifier: Apache-2.0
#include "experts/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "experts/encode.h"
#include "experts/isa.h"
#include "experts/source.h"
#include "experts/transpose.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// Steps of 2 bytes to columns.
void transpose_halves(const std::byte* codes, size_t stride, int64_t width, int64_t steps,
                      std::byte* out) {
  for (int64_t s = 0; s < steps; ++s) {
    for (int64_t c = 0; c < width; ++c) {
      std::memcpy(out + 2 * (s * width + c), codes + static_cast<size_t>(c) * stride + 2 * s, 2);
    }
  }
}

// Pieces of `bytes` bytes, two by two, become one: low nibbles from the first.
void merge_nibbles(const std::byte* pieces, int64_t bytes, int64_t count, std::byte* out) {
  for (int64_t p = 0; p < count; p += 2, pieces += 2 * bytes, out += bytes) {
    for (int64_t i = 0; i < bytes; ++i) out[i] = pieces[i] | (pieces[bytes + i] << 4);
  }
}

// The order of place_of_code (dot_products.h).
void interleave_halves(int64_t width, int64_t steps, std::byte* panel) {
  std::vector<std::byte> step(static_cast<size_t>(2 * width));
  for (int64_t s = 0; s < steps; ++s, panel += 2 * width) {
    std::memcpy(step.data(), panel, step.size());
    for (int64_t chunk = 0; chunk < width / 8; ++chunk) {
      std::memcpy(panel + 16 * chunk, step.data() + 8 * chunk, 8);
      std::memcpy(panel + 16 * chunk + 8, step.data() + width + 8 * chunk, 8);
    }
  }
}

// The order of unpack_int4_bf16 (dot_products.h). A step has `width` bytes for each half.
void merge_halves(const std::byte* in, int64_t width, int64_t steps, std::byte* out) {
  for (int64_t s = 0; s < steps; ++s, in += 2 * width) {
    std::byte* const to = out + s / 2 * 2 * width + s % 2;
    for (int64_t i = 0; i < width; ++i) to[2 * i] = in[i] | in[width + i] << 4;
  }
}

// The order of unpack_int8_bf16 (dot_products.h).
void interleave_pairs(int64_t width, int64_t steps, std::byte* panel) {
  std::vector<std::byte> step(static_cast<size_t>(2 * width));
  for (int64_t s = 0; s < steps; ++s, panel += 2 * width) {
    std::memcpy(step.data(), panel, step.size());
    for (int64_t c = 0; c < width; ++c) {
      const int64_t column = c % 2 * (width / 2) + c / 2;
      std::memcpy(panel + 2 * c, step.data() + 2 * column, 2);
    }
  }
}

// What packing one matrix, or two side by side, is about; shared by the threads that pack its
// panels. weights: have all their memory.
struct PackJob {
  PackedWeights& weights;
  const Storage storage;
  const std::span<const MatrixSource> sources;
  const std::span<const std::string_view> names;  // of the sources, for errors
  const std::vector<int32_t> order;               // that all sources are encoded in

  int64_t width() const { return weights.kernels->width; }
  // Of one input, before nibbles share a byte.
  int64_t code_bytes() const { return std::max(1, storage.step_bytes / storage.step_inputs); }
  size_t row_bytes() const { return cells(storage.padded_in, code_bytes()); }
};

// The order that all sources are encoded in. They meet the same rows.
std::vector<int32_t> common_order(std::span<const MatrixSource> sources, WeightFormat format,
                                  const Storage& storage) {
  std::vector<int32_t> order;
  for (const MatrixSource& source : sources) {
    const bool copied = same_quantization(source, format, storage);
    std::vector<int32_t> own;
    if (copied) own = columns_by_block(source);
    if (&source != sources.data() && own != order) {
      throw InvalidArgument(cat("gate and up have their columns in different orders of groups, ",
                                "which ", name(format), " can't keep; bf16 can"));
    }
    order = std::move(own);
  }
  return order;
}

// Fills panels, one after the other, with memory of its own for what is in between.
class PanelPacker {
 public:
  explicit PanelPacker(const PackJob& job)
      : weights_(job.weights),
        storage_(job.storage),
        names_(job.names),
        width_(job.width()),
        row_bytes_(job.row_bytes()),
        codes_(cells(width_, row_bytes_)),
        row_scales_(cells(storage_.groups(), storage_.scale_bytes)),
        row_zeros_(storage_.groups()) {
    for (const MatrixSource& source : job.sources)
      encoders_.emplace_back(source, weights_.format, storage_, job.order);
  }

  void pack(int64_t p) {
    const int64_t half = width_ / std::ssize(encoders_);
    const Panel to = panel(weights_, p);
    std::fill(codes_.begin(), codes_.end(), std::byte{0});
    for (int64_t e = 0; e < std::ssize(encoders_); ++e) {
      try {
        for (int64_t c = 0; c < to.cols; ++c) encode(encoders_[e], to.first + c, p, e * half + c);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(cat(names_[e], ": ", error.what()));
      }
    }
    lay_out(weights_.panels.data() + cells(p, panel_bytes(weights_)));
  }

 private:
  void encode(RowEncoder& encoder, int64_t row, int64_t panel, int64_t column) {
    encoder.encode(row, codes_.data() + cells(column, row_bytes_), row_scales_.data(),
                   encoder.has_zeros() ? row_zeros_.data() : nullptr);
    if (storage_.scale_bytes == 0) return;
    if (weights_.format.scheme == Scheme::kFP8 && weights_.row_scale.bytes() > 0) fold_row_scale();
    const int64_t bytes = storage_.scale_bytes;
    for (int64_t g = 0; g < storage_.groups(); ++g) {
      const int64_t index = (panel * storage_.groups() + g) * width_ + column;
      std::memcpy(weights_.scales.data() + index * bytes, row_scales_.data() + g * bytes, bytes);
      if (weights_.zeros.bytes() == 0) continue;
      put_zero_point(weights_.zeros.data(), index, storage_.zero_bytes,
                     encoder.has_zeros() ? row_zeros_[g] : zero_code(weights_.format));
    }
  }

  void fold_row_scale() {
    for (int64_t g = 0; g < storage_.groups(); ++g) {
      float scale;
      std::byte* const at = row_scales_.data() + g * int64_t{sizeof(scale)};
      std::memcpy(&scale, at, sizeof(scale));
      scale *= *weights_.row_scale.as<float>();
      std::memcpy(at, &scale, sizeof(scale));
    }
  }

  void lay_out(std::byte* out) {
    const int64_t steps = storage_.steps();
    const auto bytes_of = [&](int64_t step_bytes) { return cells(steps, width_, step_bytes); };
    switch (weights_.format.scheme) {
      case Scheme::kF32:
      case Scheme::kBF16:
      case Scheme::kW8A8:
        return transpose(out);
      case Scheme::kW4A8:
        wide_.resize(bytes_of(4));
        transpose(wide_.data());
        return merge_nibbles(wide_.data(), 4 * width_, steps, out);
      case Scheme::kF16:
        return transpose_halves(codes_.data(), row_bytes_, width_, steps, out);
      case Scheme::kMXFP8:
      case Scheme::kFP8:
        transpose_halves(codes_.data(), row_bytes_, width_, steps, out);
        return interleave_halves(width_, steps, out);
      case Scheme::kMXFP4:
        wide_.resize(bytes_of(2));
        transpose_halves(codes_.data(), row_bytes_, width_, steps, wide_.data());
        interleave_halves(width_, steps, wide_.data());
        return merge_nibbles(wide_.data(), 2 * width_, steps, out);
      case Scheme::kW4A16:
        wide_.resize(bytes_of(2));
        transpose_halves(codes_.data(), row_bytes_, width_, steps, wide_.data());
        return merge_halves(wide_.data(), width_, steps, out);
      case Scheme::kW8A16:
        transpose_halves(codes_.data(), row_bytes_, width_, steps, out);
        return interleave_pairs(width_, steps, out);
    }
  }

  void transpose(std::byte* out) {
    const auto row = [this](int64_t r) { return codes_.data() + cells(r, row_bytes_); };
    transpose_steps(row, width_, storage_.steps(), reinterpret_cast<uint32_t*>(out), width_);
  }

  PackedWeights& weights_;
  const Storage storage_;
  const std::span<const std::string_view> names_;
  const int64_t width_;
  const size_t row_bytes_;
  std::vector<RowEncoder> encoders_;
  std::vector<std::byte> codes_;  // [width] rows
  std::vector<std::byte> row_scales_;
  std::vector<int32_t> row_zeros_;
  std::vector<std::byte> wide_;  // a panel before nibbles share a byte
};

// Packs all panels, over the team where there is one. A panel is written, and its memory touched
// for the first time, by one thread; its bits don't depend on which. Of several errors the one of
// the first panel is thrown, whatever the team.
void pack_panels(const PackJob& job, Team* team) {
  const int64_t panels = num_panels(job.weights);
  if (team == nullptr || team->size() == 1) {
    PanelPacker packer(job);
    for (int64_t p = 0; p < panels; ++p) packer.pack(p);
    return;
  }
  std::vector<std::optional<PanelPacker>> packers(cells(team->size()));
  std::mutex mutex;  // guards the two below
  int64_t failed = panels;
  std::exception_ptr error;
  std::atomic<bool> has_failed{false};
  // Panels are handed out in order, so those before one that fails are done or under way.
  team->for_each(panels, [&](int64_t p, int member) {
    if (has_failed.load(std::memory_order_relaxed)) return;
    try {
      std::optional<PanelPacker>& packer = packers[member];
      if (!packer) packer.emplace(job);
      packer->pack(p);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (p < failed) {
        failed = p;
        error = std::current_exception();
      }
      has_failed.store(true, std::memory_order_relaxed);
    }
  });
  if (error) std::rethrow_exception(error);
}

// Takes memory for the weights and fills it, if the arena has any. They have their row_scale.
void pack_sources(PackedWeights& weights, std::span<const MatrixSource> sources,
                  std::span<const std::string_view> names, BufferArena& arena, Team* team) {
  const Storage stored = storage(weights.format, weights.in);
  const PackJob job{weights, stored, sources, names, common_order(sources, weights.format, stored)};
  const PartBytes bytes = part_bytes(weights);
  if (!job.order.empty()) {
    weights.order = arena.take(bytes.order);
    if (arena.has_memory()) std::memcpy(weights.order.data(), job.order.data(), bytes.order);
  }
  weights.panels = arena.take(bytes.panels);
  weights.scales = arena.take(bytes.scales);
  const bool zeros = std::ranges::any_of(sources, [&](const MatrixSource& source) {
    return RowEncoder(source, weights.format, stored).has_zeros();
  });
  if (zeros) weights.zeros = arena.take(bytes.zeros);
  if (arena.has_memory()) pack_panels(job, team);
}

void add_row_scale(PackedWeights& weights, std::string_view what, float scale, BufferArena& arena) {
  if (scale == 0.0F || !uses_row_scale(weights.format)) return;
  if (!(scale > 0.0F && std::isfinite(scale)))
    throw InvalidArgument(cat(what, ": the scale of its rows is ", scale));
  weights.row_scale = arena.take(part_bytes(weights).row_scale);
  if (arena.has_memory()) *weights.row_scale.as<float>() = scale;
}

void add_bias(PackedWeights& weights, const VectorSource& bias, int column, BufferArena& arena) {
  const auto width = static_cast<int64_t>(weights.kernels->width);
  if (weights.bias.bytes() == 0) weights.bias = arena.take(part_bytes(weights).bias);
  if (!arena.has_memory()) return;
  for (int64_t p = 0; p < num_panels(weights); ++p) {
    const Panel to = panel(weights, p);
    for (int c = 0; c < to.cols; ++c)
      weights.bias.as<float>()[p * width + column + c] = bias.at(to.first + c);
  }
}

// Whole rows are summed in parts too, four of which the kernels multiply side by side.
int64_t part_of_whole_row(int64_t in) {
  constexpr int64_t kUsual = 128, kSideBySide = 4;
  if (in <= kUsual) return round_up(in, 8);
  const int64_t parts = round_up((in + kUsual - 1) / kUsual, kSideBySide);
  return round_up((in + parts - 1) / parts, 8);
}

}  // namespace

Storage storage(WeightFormat format, int64_t in) {
  switch (format.scheme) {
    case Scheme::kF32:
      return {kF32Product, 1, 4, in, in, 0};
    case Scheme::kF16:
      return {kF16Product, 1, 2, in, in, 0};
    case Scheme::kBF16:
      return {kBF16Product, 2, 4, round_up(in, 2), round_up(in, 2), 0};
    case Scheme::kW8A8: {
      // 255 x 128 x 65536 < 2^31; other formats have smaller codes.
      constexpr int64_t kMostInputs = 65536;
      if (in > kMostInputs) {
        throw InvalidArgument(
            cat("w8a8: sums over ", in, " inputs may not fit into 32 bits; at most ", kMostInputs));
      }
      return {kInt8Product, 4, 4, round_up(in, 4), round_up(in, 4), 4, 4};
    }
    case Scheme::kW4A8:
    case Scheme::kW4A16:
    case Scheme::kW8A16: {
      if (format.group < 0 || format.group % 8 != 0) {
        throw InvalidArgument(cat(name(WeightFormat(format.scheme)), ": a group of ", format.group,
                                  " inputs is no multiple of 8"));
      }
      const bool ints = format.scheme == Scheme::kW4A8;
      const int64_t sum = format.group != 0 ? format.group
                          : ints            ? round_up(in, 8)
                                            : part_of_whole_row(in);
      const int64_t padded = round_up(in, sum), group = format.group == 0 ? padded : sum;
      if (ints) return {kInt4Product, 4, 2, padded, group, 4, 4};
      if (format.scheme == Scheme::kW4A16)
        return {kInt4BF16Product, 2, 1, padded, group, 4, 1, sum};
      return {kInt8BF16Product, 2, 2, padded, group, 4, 1, sum};
    }
    case Scheme::kMXFP8:
      return {kMX8Product, 2, 2, round_up(in, 32), 32, 1};
    case Scheme::kFP8:
      return {kFP8Product, 2, 2, round_up(in, 128), 128, 4};
    case Scheme::kMXFP4:
      return {kMX4Product, 2, 1, round_up(in, 32), 32, 1};
  }
  throw InvalidArgument("weights: an unknown scheme");
}

int zero_code(WeightFormat format) {
  return format.scheme == Scheme::kW8A8 || format.scheme == Scheme::kW8A16 ? 128 : 8;
}

void put_zero_point(std::byte* zeros, int64_t index, int zero_bytes, int32_t zero) {
  if (zero_bytes == 1) {
    zeros[index] = static_cast<std::byte>(zero);
  } else {
    std::memcpy(zeros + index * int64_t{sizeof(zero)}, &zero, sizeof(zero));
  }
}

bool uses_row_scale(WeightFormat format) {
  return format.quantized_rows() == DType::kI8 || format.scheme == Scheme::kFP8;
}

int64_t num_panels(const PackedWeights& weights) {
  const int64_t each = weights.gated ? weights.kernels->width / 2 : weights.kernels->width;
  return (weights.out + each - 1) / each;
}

Panel panel(const PackedWeights& weights, int64_t index) {
  const int64_t each = weights.gated ? weights.kernels->width / 2 : weights.kernels->width;
  const int64_t first = index * each;
  return {first, static_cast<int>(std::min(each, weights.out - first))};
}

size_t panel_bytes(const PackedWeights& weights) {
  const Storage s = storage(weights.format, weights.in);
  return cells(s.steps(), s.step_bytes, weights.kernels->width);
}

PartBytes part_bytes(const PackedWeights& weights) {
  const Storage s = storage(weights.format, weights.in);
  const int64_t panels = num_panels(weights);
  const size_t columns = cells(panels, weights.kernels->width);
  const size_t scales = s.scale_bytes == 0 ? 0 : cells(columns, s.groups());
  return {cells(panels, panel_bytes(weights)),
          cells(scales, s.scale_bytes),
          cells(scales, s.zero_bytes),
          columns * sizeof(float),
          sizeof(float),
          cells(weights.in, sizeof(int32_t))};
}

bool parts_fit(const PackedWeights& weights) {
  const PartBytes needed = part_bytes(weights);
  return std::ranges::all_of(kPackedParts, [&](const PackedPart& part) {
    const size_t bytes = (weights.*part.buffer).bytes();
    return bytes == needed.*part.bytes || (part.optional && bytes == 0);
  });
}

PackedWeights describe_weights(int64_t in, int64_t out, WeightFormat format, bool gated,
                               const GemmKernels* kernels) {
  PackedWeights weights;
  weights.kernels = kernels == nullptr ? &chosen_kernels() : kernels;
  weights.in = in;
  weights.out = out;
  weights.format = format;
  weights.gated = gated;
  return weights;
}

PackedWeights pack_linear(std::string_view what, const MatrixSource& weight,
                          const VectorSource& bias, float row_scale, WeightFormat format,
                          const GemmKernels* kernels, BufferArena& arena, Team* team) {
  check_source(weight, "a weight");
  check_source(bias, weight.rows, "a bias");
  PackedWeights packed = describe_weights(weight.cols, weight.rows, format, false, kernels);
  add_row_scale(packed, what, row_scale, arena);
  pack_sources(packed, std::span(&weight, 1), std::span(&what, 1), arena, team);
  if (bias.data != nullptr) add_bias(packed, bias, 0, arena);
  return packed;
}

PackedWeights pack_gated(const MlpSource& source, WeightFormat format, const GemmKernels* kernels,
                         BufferArena& arena, Team* team) {
  check_source(source.gate, "the gate weight");
  const int64_t intermediate = source.gate.rows, hidden = source.gate.cols;
  check_source(source.up, intermediate, hidden, "the up weight");
  check_source(source.gate_bias, intermediate, "the gate bias");
  check_source(source.up_bias, intermediate, "the up bias");
  if ((source.gate_bias.data == nullptr) != (source.up_bias.data == nullptr)) {
    throw InvalidArgument("gate and up must have a bias both or neither");
  }
  PackedWeights packed = describe_weights(hidden, intermediate, format, true, kernels);
  add_row_scale(packed, "gate and up", source.a1_scale, arena);
  const MatrixSource both[] = {source.gate, source.up};
  constexpr std::string_view kNames[] = {"the gate weight", "the up weight"};
  pack_sources(packed, both, kNames, arena, team);
  if (source.gate_bias.data != nullptr) {
    add_bias(packed, source.gate_bias, 0, arena);
    add_bias(packed, source.up_bias, packed.kernels->width / 2, arena);
  }
  return packed;
}

}  // namespace trimtab
