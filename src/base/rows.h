// SPDX-License-Identifier: Apache-2.0
// Converts whole rows to another element type and adds them up, for many modules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab {

// Do they have a byte in common? Rows that stand side by side in wider ones (columns of one matrix)
// do not. Of rows with different strides it is enough that one lies among the others.
bool overlap(ConstRows a, ConstRows b) noexcept;
inline bool overlap(ConstRows rows, std::span<const std::byte> memory) noexcept {
  const int64_t size = std::ssize(memory);
  return overlap(rows, ConstRows(memory.data(), 1, size, size, DType::kU8));
}
template <class A, class B>
bool overlap(std::span<A> a, std::span<B> b) noexcept {
  const std::span<const std::byte> x = std::as_bytes(a), y = std::as_bytes(b);
  return !x.empty() && !y.empty() && x.data() < y.data() + y.size() &&
         y.data() < x.data() + x.size();
}

// One row of `count` elements as another type. F32 becomes BF16 by rounding to nearest, ties to
// even; BF16 becomes F32 exactly; equal types are copied. Other pairs are a broken invariant.
void convert_row(const std::byte* from, DType from_dtype, int64_t count, DType to_dtype,
                 std::byte* to) noexcept;
// All rows of `from` into `to`, which has the same shape.
void convert_rows(ConstRows from, Rows to);
void convert_rows(ConstRows from, Rows to, Team& team);

struct WeightedRow {
  const float* y = nullptr;
  float weight = 1.0F;
};

// sum = the sum of weight * y over the rows, in their order, each step rounded to f32; onto what is
// there if `more`. [count]. A block of the sum stays in registers while all rows pass, so each row
// is read once and nothing else is.
void add_rows(std::span<const WeightedRow> rows, float* sum, int64_t count, bool more) noexcept;
// to += from, all F32 of one shape.
void add_rows(ConstRows from, Rows to) noexcept;
void add_rows(ConstRows from, Rows to, Team& team);

}  // namespace trimtab
