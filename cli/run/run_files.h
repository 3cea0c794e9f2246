// SPDX-License-Identifier: Apache-2.0
// The files that a run writes for other commands.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/run/eplb_mode.h"
#include "cli/run/run_recorder.h"
#include "trimtab/checkpoint.h"
#include "trimtab/generate.h"
#include "trimtab/placement.h"

namespace trimtab::cli {

// --trace-out: int32 [steps, MoE layers, experts].
void write_trace(const std::string& file, RunRecorder& rows);
// --routes-out: int32 [prompts, positions, MoE layers, top_k], -1 behind a prompt's last position.
void write_routes(const std::string& file, std::span<const Generation> generations,
                  const ModelConfig& model);
// --routes-in: GenerateOptions::replay. Throws InvalidArgument for a file of other prompts or of
// another model, FormatError for one that is no such file.
std::vector<std::vector<int32_t>> read_routes(const std::string& file, size_t num_prompts,
                                              const ModelConfig& model);
// --eplb record:FILE: the loads, in the format that the end of the name says, and beside them the
// placement that they were recorded under, as NAME.placement.json. A .npy is written step by step;
// for the other formats all steps are in memory. JSON has the sample of the tokens too.
void write_record(const std::string& file, RunRecorder& rows, const Placement& placement,
                  const ModelConfig& model);
// Whether the format of --eplb record:FILE has a place for tokens.
bool records_tokens(const EplbMode& mode);
// --placement-out: as JSON, with the numbers of the model's layers.
void write_placement_of(const std::string& file, const Placement& placement,
                        const ModelConfig& model);

}  // namespace trimtab::cli
