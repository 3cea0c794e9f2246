// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_model.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/run/loading.h"
#include "cli/run/prompts.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

// The most memory that this process has had, mapped files included.
size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

BenchModelResult begin_result(const BenchModelOptions& options, const ModelConfig& config,
                              const Ranks& ranks, const DecoderWeights& weights) {
  BenchModelResult result{.model = valid_utf8(options.model),
                          .model_type = config.model_type,
                          .ranks = ranks.count(),
                          .threads_per_rank = options.threads_per_rank,
                          .dtype = name(WeightFormat(weights.dtype())),
                          .linear = name(weights.linear_format()),
                          .experts = name(weights.expert_format()),
                          .kv = options.kv};
  result.kv_bytes_per_token = KvCache::bytes_per_position(config, parse_kv_format(options.kv));
  result.weight_bytes = weights.bytes();
  result.expert_bytes = weights.expert_bytes();
  result.peak_bytes = peak_memory();
  result.moe_layers = num_moe_layers(config);
  result.num_experts = config.router.num_experts;
  result.top_k = config.router.top_k;
  return result;
}

// Those that fit into the model's positions, or the number of them where none does.
std::vector<int64_t> that_fit(std::span<const int64_t> counts, const ModelConfig& config,
                              int64_t more) {
  const int64_t most = config.max_position_embeddings - more;
  std::vector<int64_t> fitting;
  for (const int64_t count : counts) {
    if (config.max_position_embeddings == 0 || count <= most) fitting.push_back(count);
  }
  if (fitting.empty()) fitting.push_back(most);
  return fitting;
}

void measure_rates(const BenchModelOptions& options, Decoder& decoder,
                   const DecoderWeights& weights, const Placement& placement, LinePrinter& printer,
                   BenchModelResult& result) {
  const bool tells = decoder.comm().rank() == 0;
  const auto status = [&](const std::string& what) {
    if (tells) printer.status(what);
  };
  bench::ModelBench bench(decoder, weights, placement, parse_kv_format(options.kv),
                          {.seconds = options.seconds,
                           .least = options.rounds,
                           .cold_bytes = static_cast<size_t>(options.cold_mb) << 20});
  for (const int64_t tokens : options.prefill) {
    status(fmt::format("prompt of {} tokens", tokens));
    const bench::ModelRow row = bench.prefill(tokens);
    if (tells) result.prefill.push_back(row);
  }
  for (const int64_t context : options.contexts) {
    for (const int64_t batch : options.batches) {
      status(
          fmt::format("{} sequence{} behind {} positions", batch, batch == 1 ? "" : "s", context));
      const bench::ModelRow row = bench.decode(batch, context);
      if (tells) result.decode.push_back(row);
    }
  }
  if (tells) result.stream = bench.stream();
}

}  // namespace

void bench_model(const BenchModelOptions& given) {
  const Ranks ranks(given.ranks, 1, {.timeout = std::chrono::seconds(given.timeout)});
  BenchModelOptions options = given;
  options.threads_per_rank = threads_per_rank(options, ranks);
  LinePrinter printer(ranks.self() != 0);
  const ModelConfig config = read_model_config(options.model);
  std::vector<std::vector<int32_t>> sequences;
  if (!options.perplexity.empty()) {
    for (Prompt& prompt : read_sequences(options.model, config, options.perplexity, "--perplexity"))
      sequences.push_back(std::move(prompt.token_ids));
  }
  const SafeTensors tensors = SafeTensors::open(options.model);
  find_dtype(options.formats, tensors, config);
  const Placement placement =
      Placement::linear(num_moe_layers(config), config.router.num_experts, ranks.count());
  const auto start = std::chrono::steady_clock::now();
  const auto weights = load_decoder_weights(options, config, tensors, placement, ranks, printer);
  BenchModelResult result = begin_result(options, config, ranks, *weights);
  result.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  DecoderOptions how{.dispatcher = options.dispatcher,
                     .row_budget = options.row_budget,
                     .wire = wire_of(options),
                     .threads = options.threads_per_rank};
  if (sequences.empty()) {
    if (options.prefill.empty()) options.prefill = that_fit(kPrompts, config, 0);
    if (options.contexts.empty()) options.contexts = that_fit(kContexts, config, 1);
    const int64_t most = std::ranges::max(options.batches);
    how.max_tokens = static_cast<int>(std::max<int64_t>(how.max_tokens, most));
  }
  ranks.run([&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, how);
    const bool tells = comm.rank() == 0;
    if (tells) result.dispatcher = decoder.dispatcher();
    if (sequences.empty())
      return measure_rates(options, decoder, *weights, placement, printer, result);
    PerplexityOptions of_text{.window = options.window, .kv = parse_kv_format(options.kv)};
    if (tells) {
      of_text.progress = [&](int64_t done, int64_t of) {
        printer.status(fmt::format("{} of {} tokens of rank 0", done, of));
      };
    }
    const Perplexity found = measure_perplexity(decoder, sequences, of_text);
    if (tells) result.perplexity = found;
  });
  if (ranks.self() != 0) return;
  printer.finish("measured");
  if (result.perplexity && !std::isfinite(result.perplexity->nats)) {
    throw Error("the perplexity can't be told: the logits of some token have a NaN or an infinity");
  }
  print_report(options.json ? bench_model_json(result) : bench_model_text(result));
}

}  // namespace trimtab::cli
