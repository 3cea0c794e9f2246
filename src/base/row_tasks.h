// SPDX-License-Identifier: Apache-2.0
// Shares work over rows with a team. Rows are never empty (hidden >= 1).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/rows.h"
#include "trimtab/team.h"
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

// Calls body(first, last) for consecutive pieces of [0, rows), whose work grows with the bytes of a
// row: on the team where that takes longer than to wake it (about 10 us), else here, in one piece.
template <class Body>
void share_rows(Team& team, int64_t rows, size_t row_bytes, const Body& body) {
  constexpr size_t kBytesOfTask = size_t{1} << 16, kLeastShared = size_t{1} << 18;
  const auto bytes = static_cast<size_t>(rows) * row_bytes;
  if (team.size() == 1 || bytes < kLeastShared) return body(int64_t{0}, rows);
  const auto piece = static_cast<int64_t>(std::max<size_t>(1, kBytesOfTask / row_bytes));
  team.for_each((rows + piece - 1) / piece,
                [&](int64_t i) { body(i * piece, std::min(rows, (i + 1) * piece)); });
}

// out_of(t), f32 [cols], = the sum over i in [t * terms, (t + 1) * terms), in order, of row_of(i),
// a WeightedRow, leaving out those without a row. The sum may stand where the first of its rows
// does.
template <class OutOf, class RowOf>
void sum_rows(Team& team, int64_t sums, int64_t cols, int64_t terms, const OutOf& out_of,
              const RowOf& row_of) {
  for_each_piece(team, sums, [&](int64_t first, int64_t last) {
    std::array<WeightedRow, 16> rows;  // more than most models pick
    for (int64_t t = first; t < last; ++t) {
      float* const out = out_of(t);
      size_t count = 0;
      bool more = false;
      for (int64_t i = t * terms; i < (t + 1) * terms; ++i) {
        if (count == rows.size()) {
          add_rows(rows, out, cols, more);
          more = true;
          count = 0;
        }
        const WeightedRow row = row_of(i);
        if (row.y != nullptr) rows[count++] = row;
      }
      add_rows(std::span(rows).first(count), out, cols, more);
    }
  });
}
// The same into the rows of `out`.
template <class RowOf>
void sum_rows(Team& team, Rows out, int64_t terms, const RowOf& row_of) {
  sum_rows(
      team, out.rows, out.cols, terms, [out](int64_t t) { return out.row_as<float>(t); }, row_of);
}

}  // namespace trimtab
