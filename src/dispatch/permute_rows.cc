// SPDX-License-Identifier: Apache-2.0
#include "dispatch/permute_rows.h"

#include <algorithm>
#include <cstring>

#include "dispatch/scaled_rows.h"

namespace trimtab {
namespace {

constexpr int32_t kNobody = -1, kWritten = -2;

// Fills order so that no row is overwritten before it has been read: chains, which begin with a row
// that nobody wants, then cycles. The first row of a cycle stands there as ~row: it has to be saved
// for the last one.
void find_order(int64_t num_rows, std::span<const int32_t> from, const PermuteMemory& m) {
  const auto count = static_cast<int32_t>(from.size());
  std::fill_n(m.wanted_by.begin(), num_rows, kNobody);
  for (int32_t i = 0; i < count; ++i) m.wanted_by[from[i]] = i;
  auto next = m.order.begin();
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t row = i; row < count && m.wanted_by[row] == kNobody; row = from[row]) {
      *next++ = row;
      m.wanted_by[row] = kWritten;
      m.wanted_by[from[row]] = kNobody;
    }
  }
  for (int32_t i = 0; i < count; ++i) {
    if (m.wanted_by[i] < 0) continue;
    *next++ = ~i;
    m.wanted_by[i] = kWritten;
    for (int32_t row = from[i]; row != i; row = from[row]) {
      *next++ = row;
      m.wanted_by[row] = kWritten;
    }
  }
}

// Some columns of all rows.
void move_columns(Rows rows, std::span<const int32_t> from, std::span<const float> weights,
                  const PermuteMemory& m, int64_t begin, int64_t count) {
  int32_t first = kNobody;  // the row that is saved
  for (int32_t row : m.order.first(from.size())) {
    if (row < 0) {
      first = row = ~row;
      std::copy_n(rows.row_as<float>(row) + begin, count, m.first.data() + begin);
    }
    const int32_t source = from[row];
    const float* const values = source == first ? m.first.data() : rows.row_as<float>(source);
    scale_row(values + begin, rows.row_as<float>(row) + begin, count,
              weights.empty() ? 1.0F : weights[source]);
  }
}

}  // namespace

PermuteMemory plan_permute(Carver& carver, int64_t max_rows, int64_t hidden) {
  return {.wanted_by = carver.take<int32_t>(max_rows),
          .order = carver.take<int32_t>(max_rows),
          .first = carver.take<float>(hidden)};
}

void permute_rows(Rows rows, std::span<const int32_t> from, std::span<const float> weights,
                  const PermuteMemory& memory, Team& team) {
  find_order(rows.rows, from, memory);
  // Every member takes some columns through all rows: cycles may be few and of any length. Less
  // than a page of columns would be a jump for next to nothing.
  constexpr int64_t kLeastColumns = 256;
  const int64_t parts = std::clamp<int64_t>(rows.cols / kLeastColumns, 1, team.size());
  team.for_each(parts, [&](int64_t i) {
    const int64_t begin = rows.cols * i / parts, end = rows.cols * (i + 1) / parts;
    move_columns(rows, from, weights, memory, begin, end - begin);
  });
}

}  // namespace trimtab
