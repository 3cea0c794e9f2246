// SPDX-License-Identifier: Apache-2.0
// `trimtab run --dry-run`: how much memory a run takes, without running it.
#pragma once

#include "cli/run/job.h"
#include "cli/run/ranks.h"
#include "cli/run/run_result.h"
#include "trimtab/safetensors.h"

namespace trimtab::cli {

// The model, how it would run and the memory of each rank. Of the weights nothing is read but
// headers, and no memory is taken for them, for steps, or for keys and values. Throws what a run
// would throw before its first step, but for damaged weights and weights that a format can't hold.
RunResult dry_run(const Job& job, const SafeTensors& tensors, const Ranks& ranks,
                  LinePrinter& printer);

}  // namespace trimtab::cli
