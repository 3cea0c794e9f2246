// SPDX-License-Identifier: Apache-2.0
// Experts that are cut over the ranks of a tensor-parallel group.
#pragma once

#include "trimtab/weight_format.h"
#include "trimtab/weight_source.h"

namespace trimtab {

// The source of part `part` of `parts` of a gated MLP: a slice of its intermediate size, which
// means rows of gate and up and columns of down. The outputs of all parts sum up to the whole
// one's; the bias of down belongs to part 0. It is a view: the same bytes must outlive it. Throws
// InvalidArgument, with the sizes, where parts would be unequal or would cut a group of inputs that
// share a scale, in the source or in `format`, and for a down matrix whose columns are in another
// order (desc_act of GPTQ).
//
// Where the rows that meet down are rounded to 8 bits, each part rounds its own slice of them with
// a scale of its own: the sum is as near to the unrounded one as the whole MLP's, but has other
// bits.
MlpSource part_of(const MlpSource& source, int part, int parts, WeightFormat format);

}  // namespace trimtab
