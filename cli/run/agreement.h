// SPDX-License-Identifier: Apache-2.0
// Ranks that mpiexec starts may be given other options, files or prompts. This finds out before the
// first step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/run/eplb_setup.h"
#include "cli/run/prompts.h"
#include "cli/run/run_options.h"
#include "trimtab/checkpoint.h"
#include "trimtab/communicator.h"

namespace trimtab::cli {

// Throws InvalidArgument, with the same text on every rank, when the ranks differ in an option that
// must be the same, in the model's files, the placement, the prompts, routes to be replayed, stops
// or the version of Trimtab. Options that may differ: --threads-per-rank, --timeout, --json,
// --stream and where files are. Collective.
void require_same_run(Communicator& comm, const RunOptions& options, const ModelConfig& model,
                      const SafeTensors& tensors, const EplbSetup& eplb,
                      std::span<const Prompt> prompts, std::span<const std::vector<int32_t>> routes,
                      std::span<const std::vector<int32_t>> stops);

}  // namespace trimtab::cli
