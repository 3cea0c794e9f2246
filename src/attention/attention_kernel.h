// SPDX-License-Identifier: Apache-2.0
// The attention kernels as templates over an instruction set V, as experts/gemm_kernel.h has it.
#pragma once

#include "attention/attention_kernels.h"
#include "attention/kv_layout.h"
#include "experts/activation_kernel.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

constexpr int kPanel = KvLayout::kPanel, kBlock = KvLayout::kBlock;
// Rows of a panel that are fetched ahead; the next panel follows it.
constexpr int kAhead = 64;

inline KvLayout layout_of(const QueryTile& tile) {
  return {tile.positions, tile.head_dim};
}

// The rows of a tile are computed in groups of nearly equal height, whose sums fit in registers.
template <class V>
struct RowGroups {
  int rows, num;
  explicit RowGroups(int all) : rows(all), num(static_cast<int>(num_tiles(all, V::kMaxRows))) {}
  int first(int g) const { return static_cast<int>(tile_first(rows, num, g)); }
};

// Calls body.operator()<rows>() for a number of rows known only now.
template <int kRows, class Body>
void with_rows(int rows, const Body& body) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      body.template operator()<kRows>();
    } else {
      with_rows<kRows - 1>(rows, body);
    }
  }
}

// The element types of caches: how a vector of them is read. Kernels compute in f32.
struct KvF32 {
  using Type = float;
  static constexpr bool kScaled = false;
  template <class V>
  static auto load(const float* p) {
    return V::load(p);
  }
};
struct KvBF16 {
  using Type = uint16_t;
  static constexpr bool kScaled = false;
  template <class V>
  static auto load(const uint16_t* p) {
    return V::load_bf16(p);
  }
};
struct KvI8 {
  using Type = int8_t;
  static constexpr bool kScaled = true;  // scores by the keys' scales, weights by the values'
  template <class V>
  static auto load(const int8_t* p) {
    return V::load_int8(p);
  }
};

// out[r, c] (+)= sum over i in [0, steps) of x[r, i] panel[i, c], for two registers of columns.
// The next step of x is x_step floats on, the next row x_row, the next row of out out_row.
template <class V, class Kv, int kRows>
__attribute__((noinline)) void multiply_panel(const float* x, int64_t x_step, int64_t x_row,
                                              const typename Kv::Type* panel, int64_t steps,
                                              float* out, int64_t out_row, bool more) noexcept {
  constexpr int kElements = static_cast<int>(kLine / sizeof(typename Kv::Type));  // of a line
  typename V::Reg sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v)
      sums[r][v] = more ? V::load(out + r * out_row + v * V::kLanes) : V::set(0.0F);
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < steps; ++i) {
    for (int line = 0; line < kVecs * V::kLanes; line += kElements)
      __builtin_prefetch(panel + kAhead * kPanel + line);
    typename V::Reg columns[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) columns[v] = Kv::template load<V>(panel + v * V::kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const auto element = V::broadcast(x + r * x_row);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) sums[r][v] = V::multiply_add(element, columns[v], sums[r][v]);
    }
    panel += kPanel;
    x += x_step;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) V::store(out + r * out_row + v * V::kLanes, sums[r][v]);
  }
}

// By groups: [head_dim, rows of the group] each.
template <class V>
void pack_queries(const QueryTile& tile, float* queries) noexcept {
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(tile.head_dim));
  const RowGroups<V> groups(tile.rows);
  for (int g = 0; g < groups.num; ++g) {
    const int begin = groups.first(g), rows = groups.first(g + 1) - begin;
    float* const to = queries + begin * tile.head_dim;
    for (int r = 0; r < rows; ++r) {
      const int token = (begin + r) / tile.group, head = (begin + r) % tile.group;
      const float* const q = tile.q + token * tile.q_stride + head * tile.head_dim;
      for (int64_t d = 0; d < tile.head_dim; ++d) to[d * rows + r] = q[d] * scale;
    }
  }
}

// A tile's work on one block.
template <class V, class Kv>
class BlockAttention {
 public:
  BlockAttention(const QueryTile& tile, int64_t begin, const AttentionScratch& scratch,
                 const Attended& result)
      : tile_(tile),
        layout_(layout_of(tile)),
        groups_(tile.rows),
        begin_(begin),
        queries_(scratch.queries),
        scores_(scratch.scores),
        result_(result) {}

  void run() const {
    score();
    for (int row = 0; row < tile_.rows; ++row) exponentiate(row);
    for (int g = 0; g < groups_.num; ++g) add_values(groups_.first(g), groups_.first(g + 1));
  }

 private:
  using Element = typename Kv::Type;

  // What a row sees of the block: [first, last), empty if it sees none.
  int first(int row) const { return clipped(tile_.first(row)); }
  int last(int row) const { return clipped(tile_.last(row)); }
  int clipped(int64_t position) const {
    const int64_t height = layout_.height(begin_), at = position - begin_;
    return static_cast<int>(at < 0 ? 0 : at > height ? height : at);
  }
  float* scores_of(int row) const { return scores_ + int64_t{row} * kBlock; }

  void score() const {
    const int from = first(0) / kPanel * kPanel, to = last(tile_.rows - 1);
    for (int column = from; column < to; column += kPanel) {
      const Element* const panel =
          reinterpret_cast<const Element*>(tile_.keys) + layout_.key(begin_ + column);
      for (int part = 0; part < kPanel; part += kVecs * V::kLanes) {
        for (int g = 0; g < groups_.num; ++g) {
          const int row = groups_.first(g), rows = groups_.first(g + 1) - row;
          with_rows<V::kMaxRows>(rows, [&]<int kRows>() {
            multiply_panel<V, Kv, kRows>(queries_ + row * tile_.head_dim, kRows, 1, panel + part,
                                         tile_.head_dim, scores_of(row) + column + part, kBlock,
                                         false);
          });
        }
      }
    }
  }

  // Scores to weights, and their sum. Positions that the row does not see get the weight 0.
  void exponentiate(int row) const {
    const int from = first(row), to = last(row);
    result_.sum[row] = 0.0F;
    if (from >= to) return;
    float* const s = scores_of(row);
    const int begin = from / kPanel * kPanel, end = (to + kPanel - 1) / kPanel * kPanel;
    if constexpr (Kv::kScaled) scale(s, tile_.key_scales, begin, end);
    constexpr float kUnseen = -__builtin_inff();
    for (int i = begin; i < from; ++i) s[i] = kUnseen;
    for (int i = to; i < end; ++i) s[i] = kUnseen;

    alignas(64) float lanes[V::kLanes];
    auto top = V::set(kUnseen);
    for (int i = begin; i < end; i += V::kLanes) top = V::max(V::load(s + i), top);
    V::store(lanes, top);
    float most = lanes[0];
    for (const float lane : lanes) most = lane > most ? lane : most;
    result_.top[row] = most;

    const auto shift = V::set(most);
    auto sum = V::set(0.0F);
    for (int i = begin; i < end; i += V::kLanes) {
      const auto weight = V::exp(V::subtract(V::load(s + i), shift));
      V::store(s + i, weight);
      sum = V::add(sum, weight);
    }
    V::store(lanes, sum);
    for (int half = V::kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    result_.sum[row] = lanes[0];
    if constexpr (Kv::kScaled) scale(s, tile_.value_scales, begin, end);
  }

  // What stands for the positions [begin, end) of the block, times their scales.
  void scale(float* s, const float* scales, int begin, int end) const {
    for (int i = begin; i < end; i += V::kLanes)
      V::store(s + i, V::multiply(V::load(s + i), V::load(scales + begin_ + i)));
  }

  // Rows of one group together where all of them see the positions, then one by one: what a row
  // does not see must not come near it, as it may be NaN.
  void add_values(int begin, int end) const {
    int from = first(begin), to = last(begin);
    for (int row = begin + 1; row < end; ++row) {
      from = first(row) > from ? first(row) : from;
      to = last(row) < to ? last(row) : to;
    }
    if (from >= to) {  // They have nothing in common.
      for (int row = begin; row < end; ++row) add_values(row, 1, first(row), last(row), false);
      return;
    }
    // A sum over positions goes in order: what stands before the common ones comes first.
    bool before = false;
    for (int row = begin; row < end; ++row) before = before || first(row) < from;
    for (int row = begin; before && row < end; ++row) add_values(row, 1, first(row), from, false);
    add_values(begin, end - begin, from, to, before);
    for (int row = begin; row < end; ++row) add_values(row, 1, to, last(row), true);
  }

  void add_values(int row, int rows, int from, int to, bool more) const {
    if (from >= to && more) return;
    const int64_t dim = layout_.padded_dim();
    for (int64_t column = 0; column < dim; column += kPanel) {
      const Element* const panel = reinterpret_cast<const Element*>(tile_.values) +
                                   layout_.value(begin_ + from, column / kPanel);
      for (int part = 0; part < kPanel; part += kVecs * V::kLanes) {
        with_rows<V::kMaxRows>(rows, [&]<int kRows>() {
          multiply_panel<V, Kv, kRows>(scores_of(row) + from, 1, kBlock, panel + part, to - from,
                                       result_.out + row * dim + column + part, dim, more);
        });
      }
    }
  }

  const QueryTile& tile_;
  const KvLayout layout_;
  const RowGroups<V> groups_;
  const int64_t begin_;
  const float* const queries_;
  float* const scores_;
  const Attended& result_;
};

template <class V>
void attend_block(const QueryTile& tile, int64_t begin, const AttentionScratch& scratch,
                  const Attended& result) noexcept {
  switch (tile.format) {
    case KvFormat::kF32:
      return BlockAttention<V, KvF32>(tile, begin, scratch, result).run();
    case KvFormat::kBF16:
      return BlockAttention<V, KvBF16>(tile, begin, scratch, result).run();
    case KvFormat::kI8:
      return BlockAttention<V, KvI8>(tile, begin, scratch, result).run();
  }
}

// The softmax of several blocks from those of each (Milakov and Gimelshein, arXiv 1805.02867).
template <class V>
void merge_blocks(const QueryTile& tile, const Attended& all, const Attended& next) noexcept {
  const int64_t dim = layout_of(tile).padded_dim();
  alignas(64) float lanes[V::kLanes];
  const auto exp = [&](float x) {
    V::store(lanes, V::exp(V::set(x)));
    return lanes[0];
  };
  for (int row = 0; row < tile.rows; ++row) {
    if (next.sum[row] == 0.0F) continue;
    float *const to = all.out + row * dim, *const from = next.out + row * dim;
    const bool empty = all.sum[row] == 0.0F;
    const float top = empty || next.top[row] > all.top[row] ? next.top[row] : all.top[row];
    const float old_part = empty ? 0.0F : exp(all.top[row] - top), part = exp(next.top[row] - top);
    const auto old_factor = V::set(old_part), factor = V::set(part);
    for (int64_t d = 0; d < dim; d += V::kLanes) {
      const auto added = V::multiply(V::load(from + d), factor);
      V::store(to + d, empty ? added : V::multiply_add(V::load(to + d), old_factor, added));
    }
    all.sum[row] = empty ? next.sum[row] * part : all.sum[row] * old_part + next.sum[row] * part;
    all.top[row] = top;
  }
}

template <class V>
void finish_tile(const QueryTile& tile, const Attended& all) noexcept {
  const int64_t dim = layout_of(tile).padded_dim();
  for (int row = 0; row < tile.rows; ++row) {
    float* const to =
        tile.out + row / tile.group * tile.out_stride + row % tile.group * tile.head_dim;
    const float sum = all.sum[row];
    for (int64_t d = 0; d < tile.head_dim; ++d) to[d] = all.out[row * dim + d] / sum;
  }
}

template <class V>
constexpr AttentionKernels make_attention(const char* isa) {
  static_assert(kPanel % (kVecs * V::kLanes) == 0);
  return {isa, pack_queries<V>, attend_block<V>, merge_blocks<V>, finish_tile<V>};
}

}  // namespace
}  // namespace trimtab
