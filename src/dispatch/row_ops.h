// SPDX-License-Identifier: Apache-2.0
// How a dispatcher shares work over rows with its team, and what the combine does with one row. Rows are never empty
// (hidden >= 1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

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

inline void copy_rows(ConstRows from, Rows to, Team& team) {
  for_each_piece(team, to.rows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) std::memcpy(to.row(t), from.row(t), to.row_bytes());
  });
}

// sum += weight * y, each element in f32.
inline void add_scaled(float* __restrict sum, const float* __restrict y, int64_t count, float weight) {
  for (int64_t h = 0; h < count; ++h) sum[h] += weight * y[h];
}

// What the combine multiplies a row by.
inline float combine_weight(Left left, bool weight_on_input, float weight) {
  return left == Left::kSum || weight_on_input ? 1.0F : weight;
}

// out[t] = the sum over i in [t * terms, (t + 1) * terms), in order, of the row that row_of(i) gives, if any.
// row_of returns {row or null, weight}.
struct WeightedRow {
  const float* y = nullptr;
  float weight = 1.0F;
};
template <class RowOf>
void sum_rows(Team& team, Rows out, int64_t terms, const RowOf& row_of) {
  for_each_piece(team, out.rows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* sum = out.row_as<float>(t);
      std::fill_n(sum, out.cols, 0.0F);
      for (int64_t i = t * terms; i < (t + 1) * terms; ++i) {
        const WeightedRow row = row_of(i);
        if (row.y != nullptr) add_scaled(sum, row.y, out.cols, row.weight);
      }
    }
  });
}

}  // namespace trimtab
