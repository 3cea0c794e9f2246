// SPDX-License-Identifier: Apache-2.0
// How much of a large report a page shows, so that it stays under 2 MB.
#pragma once

#include <cstddef>
#include <vector>

#include "trimtab/report.h"

namespace trimtab {

// The layers to draw, ascending: all, or the most uneven ones under the first state where all would
// make the page too large; none when a single layer would.
std::vector<int> drawn_layers(const Report& report);

// Rows and columns of the map of traffic; where there are more ranks, several share one.
constexpr int kMostTrafficRows = 128;
constexpr size_t kMostTableRows = 512;
constexpr size_t kMostPoints = 400;   // points of the timeline: one for about two pixels
constexpr size_t kMostMarkTexts = 4;  // texts of one point; the page says how many more there are

}  // namespace trimtab
