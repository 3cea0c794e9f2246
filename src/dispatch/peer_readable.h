// SPDX-License-Identifier: Apache-2.0
// Memory that goes on a board must be readable by peers. Where ranks are threads any memory is;
// where they are processes the lane's workspace is, but a caller's memory may not be.
#pragma once

#include <algorithm>
#include <span>

#include "dispatch/row_tasks.h"
#include "trimtab/communicator.h"
#include "trimtab/tensor.h"

namespace trimtab {

inline size_t extent_bytes(ConstRows rows) {
  return rows.rows == 0
             ? 0
             : static_cast<size_t>(rows.row(rows.rows - 1) - rows.data) + rows.row_bytes();
}

// The rows where they are if peers can read them there, else a copy in `room`, which must have as
// many rows or more.
inline ConstRows peer_readable(const Board& board, ConstRows rows, Rows room, Team& team) {
  if (board.shares(rows.data, extent_bytes(rows))) return rows;
  const Rows copy = room.slice(0, rows.rows);
  copy_rows(rows, copy, team);
  return copy;
}

template <class T>
std::span<const T> peer_readable(const Board& board, std::span<const T> values, std::span<T> room) {
  if (board.shares(values.data(), values.size_bytes())) return values;
  std::ranges::copy(values, room.begin());
  return room.first(values.size());
}

}  // namespace trimtab
