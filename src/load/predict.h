// SPDX-License-Identifier: Apache-2.0
// How sure a mean over steps is.
#pragma once

#include <span>

namespace trimtab {

double mean_of(std::span<const double> values);

// Upper end of the two-sided 95 % interval of the mean of a series whose neighbours may be
// correlated: Student's t over the means of up to 16 runs of consecutive values.
double upper_95(std::span<const double> series);

}  // namespace trimtab
