// SPDX-License-Identifier: Apache-2.0
// The layout of PackedWeights. The outputs are cut into panels; a panel holds its columns of W^T row by row,
// [in, width], so that a kernel streams through it once and finds the weights of one input index side by side.
//   One matrix: panel_width outputs a panel; if at most `lanes` are left for the last one, it is only that wide.
//   Gated: panel_width / 2 pairs a panel, the gate columns left, the up columns right, so that both halves of an
//   activation are in one tile.
// Columns that stand for no output are zero. The bias lies in the same order, one [width] piece a panel.
#pragma once

#include <cstdint>

#include "experts/gemm.h"
#include "trimtab/experts.h"

namespace trimtab {

struct Panel {
  int64_t first;  // the outputs [first, first + cols)
  int cols;
  int width;
  int64_t offset;  // columns of all panels before this one
};

int64_t num_panels(const PackedWeights& weights);
Panel panel(const PackedWeights& weights, int64_t index);

// kernels null: the chosen ones. Throws InvalidArgument as Linear's and Mlp's constructors do.
PackedWeights pack_linear(const MatrixSource& weight, const VectorSource& bias, DType dtype,
                          const GemmKernels* kernels);
PackedWeights pack_gated(const MlpSource& source, DType dtype, const GemmKernels* kernels);

}  // namespace trimtab
