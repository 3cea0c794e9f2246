// SPDX-License-Identifier: Apache-2.0
// Checks on the matrices and vectors that weights are read from.
#pragma once

#include <string_view>

#include "trimtab/weight_source.h"

namespace trimtab {

// Throw InvalidArgument, calling the source `what`: an empty matrix, no data, a type that weights
// can't have, a quantised type without scales or the other way round, blocks, scale types and zero
// points that can't be, a scale that is negative, infinite or NaN (with its block), a matrix that
// is not rows x cols; a vector that is present and not of this size. What the strides reach must be
// there: a source does not know the size of its memory.
void check_source(const MatrixSource& source, std::string_view what);
void check_source(const MatrixSource& source, int64_t rows, int64_t cols, std::string_view what);
void check_source(const VectorSource& source, int64_t size, std::string_view what);

}  // namespace trimtab
