// SPDX-License-Identifier: Apache-2.0
// The kernels as templates over an instruction set V, a struct of the including file's unnamed namespace:
//   Reg, kLanes          a register of floats
//   kVecs, kMaxRows      the tile: kMaxRows x kVecs accumulators fill the register file but for the operands
//   load, broadcast      from float or bf16 (uint16_t; exact), no alignment needed
//   store                to float or bf16 (round to nearest even, NaN stays NaN)
//   multiply_add(a, b, c) = a b + c, add, subtract, multiply, divide, min, max (NaN if the second operand is), set,
//   exp, and for exp_polynomial: round, scale(p, n) = p 2^n
#pragma once

#include "experts/activation_kernel.h"
#include "experts/gemm.h"

namespace trimtab {
namespace {

// out[r, c] = sum over i of x[r][i] panel[i, c] + bias[c]: kRows rows, kVecs vectors of columns.
template <class V, int kRows, int kVecs, class W, class X>
__attribute__((noinline)) void multiply_tile(const W* panel, const X* const* x, int64_t k, const float* bias,
                                             float* out) noexcept {
  constexpr int kWidth = kVecs * V::kLanes;
  typename V::Reg sums[kRows][kVecs];
  const X* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = x[r];
    for (int v = 0; v < kVecs; ++v) sums[r][v] = V::set(0.0F);
  }
  for (int64_t i = 0; i < k; ++i, panel += kWidth) {
    typename V::Reg weights[kVecs];
    for (int v = 0; v < kVecs; ++v) weights[v] = V::load(panel + v * V::kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto a = V::broadcast(rows[r] + i);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = V::multiply_add(a, weights[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      const auto sum = bias == nullptr ? sums[r][v] : V::add(sums[r][v], V::load(bias + v * V::kLanes));
      V::store(out + r * kWidth + v * V::kLanes, sum);
    }
  }
}

template <class V, int kRows, int kVecs, class W, class X>
void multiply_rows(int rows, const W* panel, const X* const* x, int64_t k, const float* bias, float* out) noexcept {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<V, kRows - 1, kVecs>(rows, panel, x, k, bias, out);
  }
  multiply_tile<V, kRows, kVecs>(panel, x, k, bias, out);
}

template <class V>
void write_linear(const PanelTask& task, const float* tile, int rows, std::byte* out) noexcept {
  for (int r = 0; r < rows; ++r) {
    __builtin_memcpy(out + static_cast<size_t>(r) * task.out_stride, tile + r * task.width,
                     static_cast<size_t>(task.cols) * sizeof(float));
  }
}

template <class V, class W>
void write_gated(const PanelTask& task, const float* tile, int rows, std::byte* out) noexcept {
  constexpr int kHalf = V::kVecs / 2 * V::kLanes;
  alignas(64) W results[kHalf];
  for (int r = 0; r < rows; ++r, tile += 2 * kHalf) {
    for (int c = 0; c < kHalf; c += V::kLanes) {
      V::store(results + c, activate<V>(task, V::load(tile + c), V::load(tile + kHalf + c)));
    }
    __builtin_memcpy(out + static_cast<size_t>(r) * task.out_stride, results,
                     static_cast<size_t>(task.cols) * sizeof(W));
  }
}

template <class V, class W, class X, bool kGated>
void run_panel(const PanelTask& task) noexcept {
  alignas(64) float tile[V::kMaxRows * V::kVecs * V::kLanes];
  const W* panel = reinterpret_cast<const W*>(task.panel);
  // Tiles of nearly equal height: 7 rows are 4 + 3, since a tile of 1 row would use a fraction of the arithmetic units.
  const int64_t tiles = (task.m + V::kMaxRows - 1) / V::kMaxRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first = task.m * t / tiles;
    const int rows = static_cast<int>(task.m * (t + 1) / tiles - first);
    const X* x[V::kMaxRows];
    for (int r = 0; r < rows; ++r) {
      x[r] = reinterpret_cast<const X*>(task.x + static_cast<size_t>(first + r) * task.x_stride);
    }
    if (task.width == V::kLanes) {
      multiply_rows<V, V::kMaxRows, 1>(rows, panel, x, task.k, task.bias, tile);
    } else {
      multiply_rows<V, V::kMaxRows, V::kVecs>(rows, panel, x, task.k, task.bias, tile);
    }
    std::byte* out = task.out + static_cast<size_t>(first) * task.out_stride;
    if constexpr (kGated) {
      write_gated<V, W>(task, tile, rows, out);
    } else {
      write_linear<V>(task, tile, rows, out);
    }
  }
}

template <class V>
constexpr GemmKernels make_kernels(const char* isa) {
  return {isa,
          V::kLanes,
          V::kLanes * V::kVecs,
          {{run_panel<V, float, float, false>, run_panel<V, float, uint16_t, false>},
           {run_panel<V, uint16_t, float, false>, run_panel<V, uint16_t, uint16_t, false>}},
          {{run_panel<V, float, float, true>, run_panel<V, float, uint16_t, true>},
           {run_panel<V, uint16_t, float, true>, run_panel<V, uint16_t, uint16_t, true>}}};
}

}  // namespace
}  // namespace trimtab
