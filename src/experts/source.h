// SPDX-License-Identifier: Apache-2.0
// Checks on the matrices and vectors that weights are read from.
#pragma once

#include <string_view>

#include "trimtab/experts.h"

namespace trimtab {

// Throw InvalidArgument, calling the source `what`: an empty matrix, no data, a type that is not f32, bf16 or f16; a
// matrix that is not rows x cols; a vector that is present and not of this size.
void check_source(const MatrixSource& source, std::string_view what);
void check_source(const MatrixSource& source, int64_t rows, int64_t cols, std::string_view what);
void check_source(const VectorSource& source, int64_t size, std::string_view what);

}  // namespace trimtab
