// SPDX-License-Identifier: Apache-2.0
// `trimtab replay`: what policies would have gained and moved over a recording, replanning window
// by window.
#pragma once

#include "cli/plan/planner.h"
#include "cli/plan/replay_options.h"

namespace trimtab::cli {

// Writes to standard output. Throws Error.
void replay(const ReplayOptions& options);

}  // namespace trimtab::cli
