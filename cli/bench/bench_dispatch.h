// SPDX-License-Identifier: Apache-2.0
// `trimtab bench dispatch` times bringing tokens to their experts and back, and copying as many
// bytes.
#pragma once

#include "cli/bench/bench_dispatch_options.h"

namespace trimtab::cli {

// Writes to standard output and progress to standard error. Throws Error, also when a result is
// wrong.
void bench_dispatch(const BenchDispatchOptions& options);

}  // namespace trimtab::cli
