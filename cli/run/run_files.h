// SPDX-License-Identifier: Apache-2.0
// The files that a run writes for other commands.
#pragma once

#include <string>

#include "cli/run/run_recorder.h"
#include "trimtab/checkpoint.h"
#include "trimtab/placement.h"

namespace trimtab::cli {

// --trace-out: int32 [steps, MoE layers, experts].
void write_trace(const std::string& file, RunRecorder& rows);
// --eplb record:FILE: the loads, in the format that the end of the name says, and beside them the
// placement that they were recorded under, as NAME.placement.json. A .npy is written step by step;
// for the other formats all steps are in memory.
void write_record(const std::string& file, RunRecorder& rows, const Placement& placement,
                  const ModelConfig& model);
// --placement-out: as JSON, with the numbers of the model's layers.
void write_placement_of(const std::string& file, const Placement& placement,
                        const ModelConfig& model);

}  // namespace trimtab::cli
