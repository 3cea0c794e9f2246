// SPDX-License-Identifier: Apache-2.0
// The numbers that the page's script draws.
#pragma once

#include <span>
#include <string>

#include "trimtab/report.h"

namespace trimtab {

// JSON that is safe inside a <script> element. The report must be a checked one. layers: those to
// draw.
//   ids, tokens [layers]; experts; nodes [ranks]; expert [layers][experts] and states[].rank
//   [layers][ranks]: loads over the layer's mean, in expert_parts and rank_parts of it;
//   states[].tokens [layers], .slots [ranks], .map [layers][slots], .traffic [rows][rows] in
//   rank_parts of traffic.mean, or []; traffic: mean (of the first state's cells beside the
//   diagonal), ranks (in a row), token_bytes; moved [layers][]; time: unit,
//   points, of (how many of the report's points each stands for), series[] of name, par, worst,
//   moves; marks[] of at (which of the points), texts, trouble; curve: points[] and
//   plan, each of moves, PAR of a step, PAR of the window.
std::string report_data(const Report& report, std::span<const int> layers);

}  // namespace trimtab
