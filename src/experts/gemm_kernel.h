// SPDX-License-Identifier: Apache-2.0
// The kernels as templates over an instruction set V and a product P (dot_products.h), structs of
// the including file's unnamed namespace.
//   V: Reg, kLanes          a register of floats
//      broadcast            of one float of a row, to whatever multiply_add takes for a
//      load, store          of float; store also to bf16 (uint16_t; round to nearest even, NaN
//      stays NaN) multiply_add(a, b, c) = a b + c, add, subtract, multiply, divide, min, max (NaN
//      if the second operand is), set, exp, and for exp_polynomial: round, scale(p, n) = p 2^n
#pragma once

#include "experts/activation_kernel.h"
#include "experts/gemm.h"

namespace trimtab {
namespace {

// Registers of weights side by side: 12 rows x 2 fill 24 of 32 registers with sums, and a gated
// panel has one of each.
constexpr int kVecs = 2;

// The rows of a tile: as many as the registers hold, or 2 where the sanitizers shall soon have
// compiled every height.
constexpr int tile_rows(int most) {
#ifdef TRIMTAB_SMALL_TILES
  return most < 2 ? most : 2;
#else
  return most;
#endif
}

// What is to be fetched into L2 while a tile is computed, a little every kUnroll steps: in one
// burst the fetches would displace the loads of the tile itself.
struct Prefetch {
  const std::byte* at = nullptr;
  int lines = 0;  // per kUnroll steps
};
constexpr int kUnroll = 4;
constexpr int kMaxLines = 8;  // what kUnroll steps of bf16 weights take up
constexpr size_t kLine = 64;

// How far before their use the weights of few rows are asked for: such rows wait for memory, and
// the processor's own prefetching leaves up to a third of its rate unused. What is fetched goes on
// behind the panel, where the next one stands. Measured.
constexpr int64_t kStreamAhead = 4096, kGroupsAhead = 8192;

// The groups [group, group + kGroups) of a tile of few rows side by side, each in sums of its own:
// a dot product waits for the one before it in the same sum, and few rows have few sums. Groups are
// added up in order all the same. rows: where those of the first group begin.
template <class V, class P, int kRows, int kGroups>
__attribute__((always_inline)) inline void multiply_groups(const PanelTask& task, int64_t first,
                                                           int64_t group, const std::byte* panel,
                                                           const std::byte* const (&rows)[kRows],
                                                           int64_t offset, float* tile) noexcept {
  const int64_t groups = task.steps / task.group_steps;
  const int64_t loads = task.group_steps / P::kLoadSteps;
  const int64_t panel_stride = loads * P::kLoadBytes, row_stride = task.group_steps * P::kStepBytes;
  // The processor's own prefetching does not follow several streams: they are fetched as one.
  const std::byte* ahead = panel + kGroupsAhead;
  typename P::Sum sums[kGroups][kRows][kVecs];
  typename P::Scales scales[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    scales[g] = P::scales(task, group + g);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v)
        sums[g][r][v] = P::start(task, first + r, group + g, groups, v);
    }
  }
  for (int64_t i = 0; i < loads; ++i, panel += P::kLoadBytes) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      typename P::Weights weights[P::kLoadSteps][kVecs];
      __builtin_prefetch(ahead, 0, 2);
      ahead += P::kLoadBytes;
      P::load(panel + g * panel_stride, scales[g], weights);
#pragma GCC unroll 2
      for (int s = 0; s < P::kLoadSteps; ++s) {
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) {
          const auto x = P::broadcast(rows[r] + offset + g * row_stride + s * P::kStepBytes);
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) sums[g][r][v] = P::dot(sums[g][r][v], weights[s][v], x);
        }
      }
    }
    offset += P::kLoadSteps * P::kStepBytes;
  }
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v)
        P::finish(task, group + g, v, sums[g][r][v], tile + (r * kVecs + v) * V::kLanes);
    }
  }
}

// tile[r, c] = sum over the steps of x[r] panel[., c]: kRows rows, kVecs registers of columns.
template <class V, class P, int kRows, bool kPacked>
__attribute__((noinline)) void multiply_tile(const PanelTask& task, int64_t first,
                                             Prefetch prefetch, float* tile) noexcept {
  constexpr size_t kRowStep = kPacked ? kRows * P::kStepBytes : P::kStepBytes;
  const std::byte* rows[kPacked ? 1 : kRows];
  for (int r = 0; r < (kPacked ? 1 : kRows); ++r) {
    rows[r] = !kPacked && task.rows != nullptr
                  ? task.rows[first + r]
                  : task.x + static_cast<size_t>(first + r) * task.x_stride;
  }
  const std::byte* panel = task.panel;
  int64_t offset = 0;
  const int64_t groups = P::kGrouped ? task.steps / task.group_steps : 1;
  const int64_t group_loads = (P::kGrouped ? task.group_steps : task.steps) / P::kLoadSteps;
  int64_t g = 0;
  if constexpr (P::kSumsAtOnce > kRows && !kPacked) {
    constexpr int kGroups = P::kSumsAtOnce / kRows;
    const auto advance_by = [&](int64_t count) __attribute__((always_inline)) {
      g += count;
      panel += count * group_loads * P::kLoadBytes;
      offset += count * task.group_steps * P::kStepBytes;
    };
    for (; g + kGroups <= groups; advance_by(kGroups))
      multiply_groups<V, P, kRows, kGroups>(task, first, g, panel, rows, offset, tile);
    if constexpr (kGroups > 2) {
      for (; g + 2 <= groups; advance_by(2))
        multiply_groups<V, P, kRows, 2>(task, first, g, panel, rows, offset, tile);
    }
  }
  typename P::Sum sums[kRows][kVecs];
  for (; g < groups; ++g) {
    if (P::kGroupSums || g == 0) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v) sums[r][v] = P::start(task, first + r, g, groups, v);
      }
    }
    const typename P::Scales scales = P::scales(task, g);
    const auto advance = [&]() __attribute__((always_inline)) {
      typename P::Weights weights[P::kLoadSteps][kVecs];
      if constexpr (kRows < P::kMinPrefetchRows && !kPacked) {
        for (int64_t line = 0; line < P::kLoadBytes; line += kLine)
          __builtin_prefetch(panel + kStreamAhead + line, 0, 2);
      }
      P::load(panel, scales, weights);
      panel += P::kLoadBytes;
#pragma GCC unroll 2
      for (int s = 0; s < P::kLoadSteps; ++s) {
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const auto x =
              P::broadcast(kPacked ? rows[0] + offset + r * P::kStepBytes : rows[r] + offset);
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) sums[r][v] = P::dot(sums[r][v], weights[s][v], x);
        }
        offset += kRowStep;
      }
    };
    constexpr int kLoads = kUnroll / P::kLoadSteps;
    int64_t i = 0;
    for (; i + kLoads <= group_loads; i += kLoads) {
      for (int line = 0; line < prefetch.lines; ++line, prefetch.at += kLine)
        __builtin_prefetch(prefetch.at, 0, 2);
#pragma GCC unroll 4
      for (int u = 0; u < kLoads; ++u) advance();
    }
    for (; i < group_loads; ++i) advance();
    if (P::kGroupSums || g == groups - 1) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVecs; ++v)
          P::finish(task, g, v, sums[r][v], tile + (r * kVecs + v) * V::kLanes);
      }
    }
  }
}

template <class V, class P, int kRows, bool kPacked>
void multiply_rows(const PanelTask& task, int64_t first, int rows, Prefetch prefetch,
                   float* tile) noexcept {
  if constexpr (kRows > 1) {
    if (rows < kRows)
      return multiply_rows<V, P, kRows - 1, kPacked>(task, first, rows, prefetch, tile);
  }
  multiply_tile<V, P, kRows, kPacked>(task, first, prefetch, tile);
}

template <class V, class P>
typename V::Reg finished(const PanelTask& task, int64_t row, const float* tile,
                         int column) noexcept {
  auto sum = V::load(tile + column);
  if constexpr (P::kQuantizedRows) sum = V::multiply(sum, V::set(task.x_scales[row]));
  return task.bias == nullptr ? sum : V::add(sum, V::load(task.bias + column));
}

template <class V, class P, bool kGated>
typename V::Reg result(const PanelTask& task, int64_t row, const float* tile, int column) noexcept {
  constexpr int kHalf = kVecs / 2 * V::kLanes;
  const auto sum = finished<V, P>(task, row, tile, column);
  if constexpr (!kGated) return sum;
  return activate<V>(task, sum, finished<V, P>(task, row, tile, kHalf + column));
}

template <class V, class P, bool kGated, class Out>
void write_tile(const PanelTask& task, int64_t first, int rows, const float* tile) noexcept {
  constexpr int kCols = (kGated ? kVecs / 2 : kVecs) * V::kLanes;
  for (int r = 0; r < rows; ++r, tile += kVecs * V::kLanes) {
    std::byte* out = task.out + static_cast<size_t>(first + r) * task.out_stride;
    if (task.cols == kCols) {
      for (int c = 0; c < kCols; c += V::kLanes) {
        V::store(reinterpret_cast<Out*>(out) + c, result<V, P, kGated>(task, first + r, tile, c));
      }
    } else {
      alignas(64) Out results[kCols];
      for (int c = 0; c < kCols; c += V::kLanes) {
        V::store(results + c, result<V, P, kGated>(task, first + r, tile, c));
      }
      __builtin_memcpy(out, results, static_cast<size_t>(task.cols) * sizeof(Out));
    }
  }
}

template <class V, class P, bool kGated>
void run_panel(const PanelTask& task) noexcept {
  constexpr int kPackedRows = P::kMaxRows,
                kPlainRows = kMaxUnpackedRows < P::kMaxRows ? kMaxUnpackedRows : P::kMaxRows;
  alignas(64) float tile[kPackedRows * kVecs * V::kLanes];
  const int64_t tiles = num_tiles(task.m, task.packed ? kPackedRows : kPlainRows);
  Prefetch prefetch;
  if (task.next_panel != nullptr && task.m >= P::kMinPrefetchRows) {
    const int64_t bursts = (task.steps + kUnroll - 1) / kUnroll * tiles;
    const int64_t lines = static_cast<int64_t>(task.next_bytes / kLine);
    prefetch = {task.next_panel, static_cast<int>((lines + bursts - 1) / bursts)};
    if (prefetch.lines > kMaxLines) prefetch.lines = kMaxLines;
  }
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first = tile_first(task.m, tiles, t);
    const int rows = static_cast<int>(tile_first(task.m, tiles, t + 1) - first);
    // The output is written long after it is asked for here, and scales are read at the end of a
    // group.
    for (int r = 0; r < rows; ++r) {
      const std::byte* out = task.out + static_cast<size_t>(first + r) * task.out_stride;
      __builtin_prefetch(out, 1);
      if (!kGated) __builtin_prefetch(out + kLine, 1);
    }
    if (P::kGroupSums && t == 0) {
      const int64_t scales = task.steps / task.group_steps / task.groups_of_scale * kVecs *
                             V::kLanes * static_cast<int64_t>(sizeof(float));
      for (int64_t i = 0; i < scales; i += kLine) __builtin_prefetch(task.weight_scales + i);
    }
    if (task.packed) {
      multiply_rows<V, P, kPackedRows, true>(task, first, rows, prefetch, tile);
    } else {
      multiply_rows<V, P, kPlainRows, false>(task, first, rows, prefetch, tile);
    }
    if (prefetch.lines > 0) {
      prefetch.at += task.steps / kUnroll * prefetch.lines * static_cast<int64_t>(kLine);
      if (prefetch.at >= task.next_panel + task.next_bytes) prefetch.lines = 0;
    }
    if (task.out_bf16) {
      write_tile<V, P, kGated, uint16_t>(task, first, rows, tile);
    } else {
      write_tile<V, P, kGated, float>(task, first, rows, tile);
    }
  }
}

}  // namespace
}  // namespace trimtab
