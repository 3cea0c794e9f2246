// SPDX-License-Identifier: Apache-2.0
// Rows on their way through a collective: a record is a row, its scales and what the dispatcher
// adds, side by side.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dispatch/scaled_rows.h"
#include "dispatch/shape.h"
#include "trimtab/table.h"

namespace trimtab {

class Records {
 public:
  // tail_bytes: what the dispatcher adds to each row.
  Records(const RankShape& shape, int64_t tail_bytes) : Records(shape.hidden, shape.dtype) {
    bytes_ = padded(tail_at_ + tail_bytes);
  }
  // Of rows and their scales alone.
  Records(int64_t hidden, DType dtype)
      : hidden_(hidden),
        dtype_(dtype),
        scales_(scale_shape(dtype, hidden)),
        scales_at_(aligned(bytes_of_row(dtype_, hidden_), 4)),
        tail_at_(aligned(scales_at_ + bytes_of_row(scales_.dtype, scales_.cols), 4)),
        bytes_(tail_at_) {}

  int64_t bytes() const { return bytes_; }
  // What stands in front of records is padded to this, so that they stay aligned.
  static constexpr int64_t padded(int64_t bytes) { return aligned(bytes, 16); }

  // Views into `count` records that begin at `first`.
  ScaledRows rows(std::byte* first, int64_t count) const {
    const Rows x(first, count, hidden_, stride(dtype_), dtype_);
    if (scales_.cols == 0) return {x, {}};
    return {x, Rows(first + scales_at_, count, scales_.cols, stride(scales_.dtype), scales_.dtype)};
  }
  template <class T>
  T* tail(std::byte* first, int64_t i) const {
    return reinterpret_cast<T*>(first + i * bytes_ + tail_at_);
  }

 private:
  static constexpr int64_t aligned(int64_t bytes, int64_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }
  static int64_t bytes_of_row(DType dtype, int64_t cols) { return cols * bits(dtype) / 8; }
  int64_t stride(DType dtype) const { return bytes_ * 8 / bits(dtype); }

  int64_t hidden_;
  DType dtype_;
  ScaleShape scales_;
  int64_t scales_at_, tail_at_, bytes_;
};

}  // namespace trimtab
