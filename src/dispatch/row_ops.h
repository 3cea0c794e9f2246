// SPDX-License-Identifier: Apache-2.0
// What a dispatcher does with one row: copy it, weigh it, add it. Rows are never empty (hidden >= 1).
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trimtab/dispatcher.h"
#include "trimtab/tensor.h"

namespace trimtab {

// Rows or tokens that one task of a team handles: enough to make a task worth its hand-out (about 100 ns), few enough
// to share out a small batch.
constexpr int64_t kRowsPerTask = 8;

// Calls body(first, last) for consecutive pieces of [0, count).
template <class Body>
void for_each_piece(Team& team, int64_t count, const Body& body) {
  team.for_each((count + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t i) {
    const int64_t first = i * kRowsPerTask;
    body(first, std::min(count, first + kRowsPerTask));
  });
}

template <class T>
void scale_row(const T* __restrict from, T* __restrict to, int64_t count, float weight) {
  for (int64_t h = 0; h < count; ++h) {
    if constexpr (std::is_same_v<T, float>) {
      to[h] = from[h] * weight;
    } else {
      to[h] = to_bf16(to_float(from[h]) * weight);
    }
  }
}

// Row i of `from` to row j of `to`, times weight if weigh. Both f32 or both bf16.
inline void copy_row(ConstRows from, int64_t i, Rows to, int64_t j, bool weigh, float weight) {
  assert(from.dtype == to.dtype);
  if (!weigh) {
    std::memcpy(to.row(j), from.row(i), to.row_bytes());
  } else if (to.dtype == DType::kF32) {
    scale_row(from.row_as<float>(i), to.row_as<float>(j), to.cols, weight);
  } else {
    scale_row(from.row_as<bf16_t>(i), to.row_as<bf16_t>(j), to.cols, weight);
  }
}

// sum += weight * y, each element in f32.
inline void add_scaled(float* __restrict sum, const float* __restrict y, int64_t count, float weight) {
  for (int64_t h = 0; h < count; ++h) sum[h] += weight * y[h];
}

// What the combine multiplies a row by.
inline float combine_weight(Left left, bool weight_on_input, float weight) {
  return left == Left::kSum || weight_on_input ? 1.0F : weight;
}

}  // namespace trimtab
