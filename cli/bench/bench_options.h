// SPDX-License-Identifier: Apache-2.0
// The command line of `trimtab bench`.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/bench/bench.h"

namespace trimtab::cli {

// Adds the command, which fills `options` (they must outlive the parsing) and then runs.
void add_bench(CLI::App& app, BenchOptions& options);

}  // namespace trimtab::cli
