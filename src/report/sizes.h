// SPDX-License-Identifier: Apache-2.0
// What of a report fits on a page.
#pragma once

#include <cstddef>
#include <vector>

#include "trimtab/report.h"

namespace trimtab {

// Throws InvalidArgument, with the values, when sizes do not fit each other or a number is not
// finite.
void check_report(const Report& report);

// The layers to draw, ascending: all, or the most uneven ones under the first state where all would
// make the page too large; none when a single layer would.
std::vector<int> drawn_layers(const Report& report);

constexpr size_t kMostTableRows = 512;
constexpr size_t kMostPoints = 400;   // of the timeline: one for about two pixels
constexpr size_t kMostMarkTexts = 4;  // of one point; of the others it is said how many there are

}  // namespace trimtab
