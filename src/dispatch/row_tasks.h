// SPDX-License-Identifier: Apache-2.0
// Shares a dispatcher's work over rows with its team, and makes the sums of every combine. Rows are
// never empty (hidden >= 1).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/rows.h"
#include "trimtab/dispatcher.h"
#include "trimtab/tensor.h"

namespace trimtab {

// Rows or tokens that one task of a team handles: enough to make a task worth its hand-out (about
// 100 ns), few enough to share out a small batch.
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

// Returns the factor by which the combine multiplies a row.
inline float combine_weight(Left left, bool weight_on_input, float weight) {
  return left == Left::kSum || weight_on_input ? 1.0F : weight;
}

// out[t] = the sum over i in [t * terms, (t + 1) * terms), in order, of row_of(i), a WeightedRow,
// leaving out those without a row.
template <class RowOf>
void sum_rows(Team& team, Rows out, int64_t terms, const RowOf& row_of) {
  for_each_piece(team, out.rows, [&](int64_t first, int64_t last) {
    std::array<WeightedRow, 16> rows;  // more than most models pick
    for (int64_t t = first; t < last; ++t) {
      size_t count = 0;
      bool more = false;
      for (int64_t i = t * terms; i < (t + 1) * terms; ++i) {
        if (count == rows.size()) {
          add_rows(rows, out.row_as<float>(t), out.cols, more);
          more = true;
          count = 0;
        }
        const WeightedRow row = row_of(i);
        if (row.y != nullptr) rows[count++] = row;
      }
      add_rows(std::span(rows).first(count), out.row_as<float>(t), out.cols, more);
    }
  });
}

}  // namespace trimtab
