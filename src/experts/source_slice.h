// SPDX-License-Identifier: Apache-2.0
// Cuts the sources of weights. A slice is a view of the whole one's bytes, scales and zero points.
#pragma once

#include <cstdint>
#include <string_view>

#include "trimtab/weight_source.h"

namespace trimtab {

// `count` rows (columns, elements) from `first` on, which must be there; a source without data
// stays without. Throw InvalidArgument, calling the source `what`, for a slice that begins inside a
// byte, a word or a block of scales, and for columns in another order (desc_act of GPTQ).
MatrixSource rows_of(const MatrixSource& whole, int64_t first, int64_t count,
                     std::string_view what);
MatrixSource cols_of(const MatrixSource& whole, int64_t first, int64_t count,
                     std::string_view what);
VectorSource slice_of(const VectorSource& whole, int64_t first, int64_t count);

}  // namespace trimtab
