// SPDX-License-Identifier: Apache-2.0
// What all ranks of a run share, and what follows from it for the library's calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cli/output/line_printer.h"
#include "cli/run/eplb_setup.h"
#include "cli/run/prompts.h"
#include "cli/run/ranks.h"
#include "cli/run/run_options.h"
#include "cli/run/run_result.h"
#include "trimtab/checkpoint.h"
#include "trimtab/decoder.h"
#include "trimtab/generate.h"
#include "trimtab/layout.h"

namespace trimtab::cli {

struct Job {
  const RunOptions& options;
  const ModelConfig config;
  const std::vector<Prompt> prompts;
  const EplbSetup eplb;
  const std::optional<ParallelLayout> layout;
  const std::vector<std::vector<int32_t>> routes;  // to be replayed: [prompts], or none
  const std::vector<std::vector<int32_t>> stops;   // GenerateOptions::stops

  bool moves_experts() const { return eplb.mode.kind == EplbMode::Kind::kDynamic; }
  std::vector<std::vector<int32_t>> token_ids() const;  // of the prompts
};

GenerateOptions generate_options(const Job& job);

// Without a trace. Collective: with a file of costs rank 0 reads it.
DecoderOptions decoder_options(const Job& job, const DecoderWeights& weights, Communicator& comm);

// The weights that this process needs. how: without ranks, threads and the parts of experts.
std::shared_ptr<const DecoderWeights> load_weights(const Job& job, const SafeTensors& tensors,
                                                   const Ranks& ranks, LinePrinter& printer,
                                                   LoadOptions how);

// The memory of a run whose ranks have not said theirs.
RunMemory memory_of_run(const SafeTensors& tensors, const Ranks& ranks);
RankMemory rank_memory(const Job& job, const DecoderWeights& weights, int rank,
                       const ExpertSlots::Sizes& slots, const Decoder& decoder,
                       const SequenceMemory& sequences);

// What is known before the first step.
RunResult begin_result(const Job& job, int ranks, const DecoderWeights& weights);

}  // namespace trimtab::cli
