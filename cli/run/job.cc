// SPDX-License-Identifier: Apache-2.0
#include "cli/run/job.h"

#include "cli/output/text.h"
#include "cli/run/loading.h"
#include "trimtab/cost_file.h"
#include "trimtab/measure_cost.h"
#include "trimtab/packed_model.h"

namespace trimtab::cli {

namespace {

// What an expert takes, as --cost says: null where nothing needs it and where it is measured. A
// file is that of rank 0. Collective.
std::shared_ptr<const CostModel> cost_of_run(const Job& job, const DecoderWeights& weights,
                                             Communicator& comm) {
  const std::string& source = job.options.cost;
  if (source.empty() || source == "measure") return nullptr;
  std::optional<CostModel> cost;
  if (source == "rows") {
    cost = CostModel::of_rows();
  } else if (comm.rank() == 0) {
    cost = find_cost(read_costs(source),
                     {.hidden = job.config.hidden_size,
                      .intermediate = job.config.moe_intermediate_size,
                      .weights = name(weights.expert_format()),
                      .isa = std::string(kernel_isa()),
                      .threads = job.options.threads_per_rank},
                     source)
               .cost;
  }
  return std::make_shared<const CostModel>(broadcast_cost(comm, cost ? &*cost : nullptr));
}

}  // namespace

std::vector<std::vector<int32_t>> Job::token_ids() const {
  std::vector<std::vector<int32_t>> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.token_ids);
  return ids;
}

GenerateOptions generate_options(const Job& job) {
  const RunOptions& options = job.options;
  GenerateOptions how;
  how.kv = parse_kv_format(options.kv);
  how.keep_routes = !options.routes_out.empty();
  how.replay = job.routes;
  how.max_new_tokens = options.steps;
  how.max_sequences = options.max_sequences;
  how.sampling = options.sampling;
  how.stops = job.stops;
  how.seed = options.seed;
  return how;
}

DecoderOptions decoder_options(const Job& job, const DecoderWeights& weights, Communicator& comm) {
  const RunOptions& options = job.options;
  return {.dispatcher = options.dispatcher,
          .layout = job.layout,
          .max_tokens = options.step_tokens,
          .row_budget = options.row_budget,
          .wire = wire_of(options),
          .threads = options.threads_per_rank,
          .split = job.eplb.split,
          .cost = cost_of_run(job, weights, comm),
          .measure_cost_seconds = options.cost == "measure" ? 0.05 : 0,
          .force_balance = options.force_balance,
          .overlap = options.overlap};
}

std::shared_ptr<const DecoderWeights> load_weights(const Job& job, const SafeTensors& tensors,
                                                   const Ranks& ranks, LinePrinter& printer,
                                                   LoadOptions how) {
  how.expert_parts = job.layout ? job.layout->expert_parts() : 1;
  return load_decoder_weights(job.options, job.config, tensors, job.eplb.start, ranks, printer,
                              how);
}

RunMemory memory_of_run(const SafeTensors& tensors, const Ranks& ranks) {
  return {.ranks = std::vector<RankMemory>(ranks.count()),
          .shares_weights = !ranks.are_processes(),
          .weights_mapped = packed_formats(tensors).has_value()};
}

RankMemory rank_memory(const Job& job, const DecoderWeights& weights, int rank,
                       const ExpertSlots::Sizes& slots, const Decoder& decoder,
                       const SequenceMemory& sequences) {
  return {.weights = weights.bytes(),
          .own_weights = weights.bytes_of(job.eplb.start, std::span(&rank, 1)),
          .expert_slots = slots.bytes - slots.staging_bytes,
          .expert_spares = slots.staging_bytes,
          .workspace = decoder.workspace_bytes(),
          .kv = sequences.kv,
          .logits = sequences.logits};
}

RunResult begin_result(const Job& job, int ranks, const DecoderWeights& weights) {
  RunResult result{.start = job.eplb.start, .end = job.eplb.start};
  result.model = valid_utf8(job.options.model);
  result.model_type = job.config.model_type;
  result.ranks = ranks;
  result.threads_per_rank = job.options.threads_per_rank;
  result.dtype = name(WeightFormat(weights.dtype()));
  result.force_balance = job.options.force_balance;
  result.overlap = job.options.overlap;
  result.progress_thread = job.options.progress_thread;
  result.linear = name(weights.linear_format());
  result.experts = name(weights.expert_format());
  result.kv = job.options.kv;
  result.kv_bytes_per_token = KvCache::bytes_per_position(job.config, parse_kv_format(result.kv));
  result.top_k = job.config.router.top_k;
  result.num_experts = job.config.router.num_experts;
  result.has_text = is_byte_level(job.options.model, job.config);
  result.sampling = job.options.sampling;
  result.moe_layers = moe_layer_ids(job.config);
  result.eplb_mode = name(job.eplb.mode.kind);
  result.layout = job.layout;
  const bool parts = job.layout && !job.layout->ep;
  if (job.eplb.has_replicas() && !parts) result.split = name(job.eplb.split);
  return result;
}

}  // namespace trimtab::cli
