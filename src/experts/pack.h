// SPDX-License-Identifier: Apache-2.0
// The transpose that turns rows of a source into columns of a panel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trimtab/experts.h"

namespace trimtab {

// Writes source rows [first, first + count) as the leading `count` columns of out [source.cols, width], of type `to`:
// kF32 or kBF16. The source has been checked.
void pack_columns(const MatrixSource& source, int64_t first, int64_t count, int64_t width, DType to, std::byte* out);

}  // namespace trimtab
