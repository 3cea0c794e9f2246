// SPDX-License-Identifier: Apache-2.0
// `trimtab convert`: loads to loads, or a placement to a placement, from one engine's format to
// another's.
#pragma once

#include <string>

#include "cli/plan/inputs.h"

namespace trimtab::cli {

struct ConvertOptions {
  LoadsOptions
      in;  // one file; its format and sizes; `experts` and `format` hold for placements too
  std::string out;
  std::string to;    // format; empty: by the end of the name
  std::string kind;  // "loads", "placement"; empty: what the file holds
  int ranks = 0;     // of a placement; 0: the file says. Of the page of loads; 0: as in `inspect`
  int experts_per_token = 0;  // of loads; 0: the file says, or nobody (only trtllm needs it)
  std::string report;         // file of a page; empty: nothing is written
  bool json = false;
};

// Writes the file, and one line about it to standard output. Throws Error.
void convert(const ConvertOptions& options);

}  // namespace trimtab::cli
