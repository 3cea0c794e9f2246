// SPDX-License-Identifier: Apache-2.0
// What goes on a board must be memory that peers can read. Where ranks are threads that is any;
// where they are processes the lane's workspace is, what a caller brings may not be.
#pragma once

#include <algorithm>
#include <span>

#include "dispatch/row_ops.h"
#include "trimtab/communicator.h"
#include "trimtab/tensor.h"

namespace trimtab {

inline size_t extent_bytes(ConstRows rows) {
  return rows.rows == 0
             ? 0
             : static_cast<size_t>(rows.row(rows.rows - 1) - rows.data) + rows.row_bytes();
}

// The rows as they are, or copied to `room`, which has as many or more.
inline ConstRows share(const Board& board, ConstRows rows, Rows room, Team& team) {
  if (board.shares(rows.data, extent_bytes(rows))) return rows;
  const Rows copy = room.slice(0, rows.rows);
  copy_rows(rows, copy, team);
  return copy;
}

template <class T>
std::span<const T> share(const Board& board, std::span<const T> values, std::span<T> room) {
  if (board.shares(values.data(), values.size_bytes())) return values;
  std::ranges::copy(values, room.begin());
  return room.first(values.size());
}

}  // namespace trimtab
