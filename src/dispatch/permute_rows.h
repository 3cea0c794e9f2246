// SPDX-License-Identifier: Apache-2.0
// Brings rows into another order where they are, so that no second block of them is needed.
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab {

struct PermuteMemory {
  std::span<int32_t> wanted_by;  // [rows] who is still to get a row, or one of two marks
  std::span<int32_t> order;      // [rows] rows as they are overwritten
  std::span<float> first;        // [hidden] the first row of a cycle
};
PermuteMemory plan_permute(Carver& carver, int64_t max_rows, int64_t hidden);

// rows: F32. Row i becomes what row from[i] was, times weights[from[i]] if there are weights, for
// all i < from.size(). A row stands in `from` once at most; the rows from from.size() on and those
// that nobody wants are left as anything.
void permute_rows(Rows rows, std::span<const int32_t> from, std::span<const float> weights,
                  const PermuteMemory& memory, Team& team);

}  // namespace trimtab
