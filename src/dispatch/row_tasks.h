// SPDX-License-Identifier: Apache-2.0
// What every combine needs beside the tasks over rows.
#pragma once

#include "base/row_tasks.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

// Returns the factor by which the combine multiplies a row.
inline float combine_weight(Left left, bool weight_on_input, float weight) {
  return left == Left::kSum || weight_on_input ? 1.0F : weight;
}

}  // namespace trimtab
