// SPDX-License-Identifier: Apache-2.0
// The options of `trimtab convert`.
#pragma once

#include <string>

#include "cli/plan/planning_options.h"

namespace trimtab::cli {

struct ConvertOptions {
  // One file, its format and sizes; `experts` and `format` hold for placements too.
  LoadsOptions in;
  std::string out;
  std::string to;    // format; empty: by the end of the name
  std::string kind;  // "loads", "placement"; empty: what the file holds
  int ranks = 0;     // of a placement; 0: the file says. Of the page of loads; 0: as in `inspect`
  int experts_per_token = 0;  // of loads; 0: the file says, or nobody (only trtllm needs it)
  std::string report;         // file of a page; empty: nothing is written
  bool json = false;
};

void add_convert(Command& program, ConvertOptions& options);

}  // namespace trimtab::cli
