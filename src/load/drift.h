// SPDX-License-Identifier: Apache-2.0
// How much loads change over time.
#pragma once

#include <cstdint>

#include "trimtab/load.h"

namespace trimtab {

struct Drift {
  double mean = 0, worst = 0;  // over the windows but the first; parts of all tokens, 0 to 1
};

// How large a part of a layer's tokens went to other experts than in the window before: half the
// sum over the experts of the changes of their share, over successive windows of `window` steps.
// Steps at the end that fill no window are left out. At least two windows must fit.
Drift drift(const Load& load, int layer, int64_t window);

}  // namespace trimtab
