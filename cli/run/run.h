// SPDX-License-Identifier: Apache-2.0
// `trimtab run`: a model generates text on several ranks.
#pragma once

#include "cli/run/run_options.h"

namespace trimtab::cli {

// Writes the results to standard output and progress to standard error. Throws Error.
void run(const RunOptions& options);

}  // namespace trimtab::cli
