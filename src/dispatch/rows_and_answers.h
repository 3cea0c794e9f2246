// SPDX-License-Identifier: Apache-2.0
// The rows that a rank's experts get and what they make of them, in one block of memory. Answers
// begin where the block does and rows end where it ends, so that experts which go through the rows
// in their order overwrite what they have read (Tokens::y).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/carver.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/shape.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

class RowsAndAnswers {
 public:
  RowsAndAnswers() = default;
  // For max_rows rows. front_bytes: what the block's begin holds until its rows are there.
  static RowsAndAnswers plan(Carver& carver, const RankShape& shape, int64_t max_rows,
                             size_t front_bytes = 0) {
    const size_t answers = shape_bytes(DType::kF32, max_rows, shape.hidden);
    const size_t rows = shape_bytes(shape.dtype, max_rows, shape.hidden);
    const size_t ahead = shape_bytes(shape.dtype, std::min(max_rows, kRowsAtOnce), shape.hidden);
    const ScaleShape scales = shape.scales();
    RowsAndAnswers made;
    made.hidden_ = shape.hidden;
    made.dtype_ = shape.dtype;
    made.block_ =
        carver.take<std::byte>(std::max(answers + ahead, front_bytes + rows) + kAlignment);
    made.scales_ = carver.take_rows(max_rows, scales.cols, scales.dtype);
    return made;
  }

  std::span<std::byte> front(size_t bytes) const { return block_.first(bytes); }
  // Views of `count` rows and their answers.
  ScaledRows rows(int64_t count) const {
    const size_t begin = block_.size() - shape_bytes(dtype_, count, hidden_);
    const Rows x(block_.data() + begin / kAlignment * kAlignment, count, hidden_, hidden_, dtype_);
    return {x, scales_.cols > 0 ? scales_.slice(0, count) : Rows{}};
  }
  Rows answers(int64_t count) const {
    return {block_.data(), count, hidden_, hidden_, DType::kF32};
  }
  // Answers that the block has memory for, which may be more than there are rows.
  int64_t most_answers() const {
    return std::ssize(block_) / static_cast<int64_t>(shape_bytes(DType::kF32, hidden_));
  }
  bool holds(ConstRows y) const { return y.data == block_.data(); }

 private:
  static constexpr size_t kAlignment = 64;

  std::span<std::byte> block_;
  Rows scales_;
  int64_t hidden_ = 0;
  DType dtype_ = DType::kF32;
};

}  // namespace trimtab
