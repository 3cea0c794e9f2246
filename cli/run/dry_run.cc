// SPDX-License-Identifier: Apache-2.0
#include "cli/run/dry_run.h"

namespace trimtab::cli {

RunResult dry_run(const Job& job, const SafeTensors& tensors, const Ranks& ranks,
                  LinePrinter& printer) {
  // The decoder needs to know its experts, also those that a run keeps in slots.
  const auto whole = load_weights(job, tensors, ranks, printer, {.outline = true});
  const auto kept = job.moves_experts()
                        ? load_weights(job, tensors, ranks, printer,
                                       {.routed = RoutedExperts::kInSlots, .outline = true})
                        : whole;
  const std::vector<std::vector<int32_t>> prompts = job.token_ids();
  const GenerateOptions how = generate_options(job);
  RunResult result = begin_result(job, ranks.count(), *whole);
  result.memory = memory_of_run(tensors, ranks);
  ranks.run([&](Communicator& comm) {
    const Decoder decoder(whole, job.eplb.start, comm, decoder_options(job, *whole, comm));
    if (comm.rank() == 0) {
      result.dispatcher = decoder.dispatcher();
      result.wire = {decoder.rows_on_wire(), decoder.results_on_wire(), {}};
    }
    ExpertSlots::Sizes slots;
    if (job.moves_experts()) {
      slots = whole->expert_slots_sizes(job.eplb.start, comm,
                                        num_spares(job.eplb.config, job.eplb.start));
    }
    const ParallelLayout& layout = decoder.layout();
    const SequenceMemory sequences =
        max_generate_memory(job.config, prompts, how, decoder.options().max_tokens,
                            layout.dp_rank(comm.rank()), layout.dp);
    result.memory.ranks[comm.rank()] =
        rank_memory(job, *kept, comm.rank(), slots, decoder, sequences);
    if (ranks.are_processes()) gather(comm, result.memory);
  });
  return result;
}

}  // namespace trimtab::cli
