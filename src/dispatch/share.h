// SPDX-License-Identifier: Apache-2.0
// What goes on a board must be memory that peers can read. Where ranks are threads that is any; where they are
// processes the lane's workspace is, what a caller brings may not be.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "trimtab/communicator.h"
#include "trimtab/tensor.h"

namespace trimtab {

inline size_t extent_bytes(ConstRows rows) {
  return rows.rows == 0 ? 0 : static_cast<size_t>(rows.row(rows.rows - 1) - rows.data) + rows.row_bytes();
}

// The rows as they are, or copied to `room`, which has as many or more.
inline ConstRows share(const Board& board, ConstRows rows, Rows room) {
  if (board.shares(rows.data, extent_bytes(rows))) return rows;
  for (int64_t r = 0; r < rows.rows; ++r) std::memcpy(room.row(r), rows.row(r), rows.row_bytes());
  return room.slice(0, rows.rows);
}

template <class T>
std::span<const T> share(const Board& board, std::span<const T> values, std::span<T> room) {
  if (board.shares(values.data(), values.size_bytes())) return values;
  std::ranges::copy(values, room.begin());
  return room.first(values.size());
}

}  // namespace trimtab
