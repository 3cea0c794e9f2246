// SPDX-License-Identifier: Apache-2.0
// `trimtab convert` turns loads, or a placement, from one engine's format into another's.
#pragma once

#include "cli/plan/convert_options.h"

namespace trimtab::cli {

// Writes the file, and one line about it to standard output. Throws Error.
void convert(const ConvertOptions& options);

}  // namespace trimtab::cli
