// SPDX-License-Identifier: Apache-2.0
// Products of rows with packed weights, a panel at a time: the unit of work that is shared over a team.
#pragma once

#include <cstdint>
#include <string_view>

#include "trimtab/experts.h"

namespace trimtab {

// Throws InvalidArgument, calling the product `what`, unless x [m, in] and out [m, out] fit the weights: x f32 or bf16,
// out f32, or of the weights' type if gated.
void check_product(const PackedWeights& weights, ConstRows x, ConstRows out, std::string_view what);

// The outputs of one panel for all rows of x. The shapes have been checked.
void linear_panel(const PackedWeights& weights, int64_t panel, ConstRows x, Rows y) noexcept;
void gated_panel(const PackedWeights& weights, int64_t panel, Activation activation, ConstRows x, Rows act) noexcept;

// body(i) for i in [0, count), over the team unless the work is so small (about 10 us) that waking it costs more.
template <class Body>
void share(Team& team, int64_t count, int64_t multiply_adds, Body&& body) {
  if (multiply_adds < int64_t{1} << 18) {
    for (int64_t i = 0; i < count; ++i) body(i);
  } else {
    team.for_each(count, body);
  }
}

}  // namespace trimtab
