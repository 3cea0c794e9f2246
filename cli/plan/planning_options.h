// SPDX-License-Identifier: Apache-2.0
// The command lines of `trimtab inspect`, `plan`, `check`, `convert` and `replay`.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/plan/check.h"
#include "cli/plan/convert.h"
#include "cli/plan/inspect.h"
#include "cli/plan/plan.h"
#include "cli/plan/replay.h"

namespace trimtab::cli {

// Each adds a command that fills `options`, which must outlive the parsing, and then runs.
void add_inspect(CLI::App& app, InspectOptions& options);
void add_plan(CLI::App& app, PlanOptions& options);
void add_check(CLI::App& app, CheckOptions& options);
void add_convert(CLI::App& app, ConvertOptions& options);
void add_replay(CLI::App& app, ReplayOptions& options);

}  // namespace trimtab::cli
