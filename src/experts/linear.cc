// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "experts/panels.h"
#include "experts/product.h"
#include "trimtab/experts.h"

namespace trimtab {

Linear::Linear(const MatrixSource& weight, const VectorSource& bias, DType dtype, const GemmKernels* kernels)
    : packed_(pack_linear(weight, bias, dtype, kernels)) {}

void Linear::run(ConstRows x, Rows y, Team& team) const {
  check_product(packed_, x, y, "linear");
  if (x.rows == 0) return;
  // Rows are shared too, since a router's gate or a small head has but one or two panels.
  constexpr int64_t kRowsPerItem = 96;
  const int64_t blocks = (x.rows + kRowsPerItem - 1) / kRowsPerItem;
  share(team, num_panels(packed_) * blocks, x.rows * in() * out(), [&](int64_t item) {
    const int64_t first = item % blocks * kRowsPerItem;
    const int64_t rows = std::min(kRowsPerItem, x.rows - first);
    linear_panel(packed_, item / blocks, x.slice(first, rows), y.slice(first, rows));
  });
}

}  // namespace trimtab
