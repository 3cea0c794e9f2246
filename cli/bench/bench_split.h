// SPDX-License-Identifier: Apache-2.0
// `trimtab bench split`: what each split rule makes of batches, and what it costs to find that.
#pragma once

#include "cli/bench/bench_split_options.h"

namespace trimtab::cli {

// Writes to standard output and progress to standard error. Throws Error.
void bench_split(const BenchSplitOptions& options);

}  // namespace trimtab::cli
