// SPDX-License-Identifier: Apache-2.0
// The inner loop of every combine.
#pragma once

#include <cstdint>
#include <span>

namespace trimtab {

struct WeightedRow {
  const float* y = nullptr;
  float weight = 1.0F;
};

// sum = the sum of weight * y over the rows, in their order, each step rounded to f32; onto what is
// there if `more`. [count]. A block of the sum stays in registers while all rows pass, so each row
// is read once and nothing else is.
void add_rows(std::span<const WeightedRow> rows, float* sum, int64_t count, bool more) noexcept;

}  // namespace trimtab
