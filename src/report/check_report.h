// SPDX-License-Identifier: Apache-2.0
// Do the parts of a report fit each other?
#pragma once

#include "trimtab/report.h"

namespace trimtab {

// Throws InvalidArgument, with the values, when sizes do not fit each other or a number is not
// finite.
void check_report(const Report& report);

}  // namespace trimtab
