// SPDX-License-Identifier: Apache-2.0
#include "cli/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/gather.h"
#include "cli/line_printer.h"
#include "cli/output.h"
#include "cli/prompts.h"
#include "cli/ranks.h"
#include "cli/run_report.h"
#include "cli/run_result.h"
#include "cli/run_trace.h"
#include "cli/text.h"
#include "trimtab/decoder.h"
#include "trimtab/error.h"
#include "trimtab/npy.h"

namespace trimtab::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::max(std::chrono::duration<double>(Clock::now() - start).count(), 1e-9);
}

std::vector<Prompt> read_prompts(const RunOptions& options, const ModelConfig& config) {
  if (!options.token_ids.empty()) return read_token_id_prompts(options.token_ids);
  if (!is_byte_level(options.model, config)) {
    throw InvalidArgument(fmt::format("{} has no byte-level vocabulary ({} tokens); give its prompts as --token-ids",
                                      options.model, config.vocab_size));
  }
  if (!options.prompts.empty()) return read_text_prompts(options.prompts, config);
  const std::string shipped = (std::filesystem::path(options.model) / "prompts.txt").string();
  if (!std::filesystem::exists(shipped)) {
    throw InvalidArgument(fmt::format("{} does not exist; give --prompts or --token-ids", shipped));
  }
  return read_text_prompts(shipped, config);
}

struct Run {
  std::vector<Generation> generations;  // [prompts]
  Load load;
  RankLoads rank_loads;
  int64_t steps = 0;
  double seconds = 0.0;
  std::string dispatcher;
  std::string experts;
};

// Where ranks are processes: what the other ranks have generated, prompt i on rank i % ranks.
void gather_generations(Communicator& comm, std::span<Generation> generations) {
  std::vector<int32_t> mine;  // of each prompt: how it ended, how many tokens, the tokens
  for (auto i = static_cast<size_t>(comm.rank()); i < generations.size(); i += static_cast<size_t>(comm.size())) {
    const std::vector<int32_t>& ids = generations[i].token_ids;
    mine.push_back(static_cast<int32_t>(generations[i].finish));
    mine.push_back(static_cast<int32_t>(ids.size()));
    mine.insert(mine.end(), ids.begin(), ids.end());
  }
  const auto all = gather(comm, std::as_bytes(std::span(mine)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<int32_t> values = values_of<int32_t>(all[rank]);
    auto value = values.begin();
    for (size_t i = rank; i < generations.size(); i += all.size()) {
      generations[i].finish = static_cast<Finish>(*value++);
      const auto count = *value++;
      generations[i].token_ids.assign(value, value + count);
      value += count;
    }
  }
}

Run generate_on_ranks(const RunOptions& options, const Ranks& ranks,
                      const std::shared_ptr<const DecoderWeights>& weights, const Placement& placement,
                      const std::vector<Prompt>& prompts, LinePrinter& printer) {
  std::vector<std::vector<int32_t>> token_ids;
  for (const Prompt& prompt : prompts) token_ids.push_back(prompt.token_ids);
  Run result;
  result.generations.resize(prompts.size());
  DecoderOptions decoder_options;
  decoder_options.dispatcher = options.dispatcher;
  decoder_options.threads = options.threads_per_rank;
  const int64_t max_steps =
      max_generate_steps(weights->config(), token_ids, options.steps, decoder_options.max_tokens, ranks.count());
  std::vector<std::vector<int32_t>> counts(static_cast<size_t>(ranks.count()));  // what the recorders have
  RunTrace trace(options.chrome_trace, ranks, max_steps, weights->config().num_hidden_layers);

  ranks.run([&](Communicator& comm) {
    DecoderOptions own_options = decoder_options;
    own_options.trace = trace.add_thread(comm, "steps");
    Decoder decoder(weights, placement, comm, own_options);
    LoadRecorder recorder(placement.num_layers(), placement.slots_of_rank(comm.rank()), max_steps);
    GenerateOptions how;
    how.max_new_tokens = options.steps;
    how.temperature = options.temperature;
    how.seed = options.seed;
    trace.begin(comm);
    comm.barrier();
    const auto start = Clock::now();
    if (comm.rank() == 0) {
      how.progress = [&](const GenerateProgress& progress) {
        result.steps = progress.steps;
        if (!printer.wants_status()) return;
        printer.status(fmt::format("step {}: {} new tokens, {} of {} prompts to go, {:.0f} tokens/s", progress.steps,
                                   progress.new_tokens, progress.unfinished_prompts, prompts.size(),
                                   static_cast<double>(progress.new_tokens) / seconds_since(start)));
      };
    }
    generate(decoder, token_ids, how, result.generations, &recorder);
    // The last agreement of generate() has brought all ranks here together.
    if (comm.rank() == 0) {
      result.seconds = seconds_since(start);
      result.dispatcher = decoder.dispatcher();
    }
    trace.finish(comm);
    const auto recorded = recorder.recorded();
    if (ranks.are_processes()) {
      gather_generations(comm, result.generations);
      const auto all = gather(comm, std::as_bytes(recorded));
      std::ranges::transform(all, counts.begin(), values_of<int32_t>);
    } else {
      counts[static_cast<size_t>(comm.rank())].assign(recorded.begin(), recorded.end());
    }
  });
  if (ranks.self() == 0) {
    const std::vector<std::span<const int32_t>> all(counts.begin(), counts.end());
    result.load = merge_loads(placement, result.steps, all);
    result.rank_loads = rank_loads_of(result.steps, placement.num_layers(), all);
    trace.write();
  }
  return result;
}

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kEndToken:
      return "end_token";
    case Finish::kMaxNewTokens:
      return "steps";
    case Finish::kContextFull:
      return "context";
  }
  return "";
}

RunResult summarize(const RunOptions& options, int ranks, const ModelConfig& config, const Placement& placement,
                    const std::vector<Prompt>& prompts, const Run& run) {
  RunResult result;
  result.model = valid_utf8(options.model);
  result.model_type = config.model_type;
  result.ranks = ranks;
  result.dispatcher = run.dispatcher;
  result.dtype = options.dtype;
  result.experts = run.experts;
  result.top_k = config.router.top_k;
  result.num_experts = config.router.num_experts;
  result.has_text = is_byte_level(options.model, config);
  result.steps = run.steps;
  result.seconds = run.seconds;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Generation& generation = run.generations[i];
    const auto length = static_cast<int64_t>(prompts[i].token_ids.size());
    const std::string text = result.has_text ? valid_utf8(bytes_of(generation.token_ids)) : "";
    result.outputs.push_back(
        {valid_utf8(prompts[i].text), length, generation.token_ids, text, name(generation.finish)});
    result.prompt_tokens += length;
    result.tokens += std::ssize(generation.token_ids);
  }
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    if (config.is_moe_layer[static_cast<size_t>(l)]) result.moe_layers.push_back(l);
  }
  for (int l = 0; l < run.load.num_layers; ++l) {
    std::vector<int64_t> total(static_cast<size_t>(run.load.num_experts));
    for (int64_t step = 0; step < run.load.num_steps; ++step) {
      const auto counts = run.load.at(step, l);
      for (size_t e = 0; e < total.size(); ++e) total[e] += counts[e];
    }
    result.rank_load.push_back(rank_load(placement, l, total));
    result.par_per_layer.push_back(par(result.rank_load.back()));
  }
  return result;
}

void write_trace(const std::string& file, const Load& load) {
  const std::vector<int32_t> counts(load.counts.begin(), load.counts.end());
  const std::vector<int64_t> shape = {load.num_steps, load.num_layers, load.num_experts};
  write_npy(file, DType::kI32, shape, std::as_bytes(std::span(counts)));
}

}  // namespace

void run(const RunOptions& options) {
  const Ranks ranks(options.ranks, {.timeout = std::chrono::seconds(options.timeout)});
  constexpr int kMaxThreads = 4096;
  if (int64_t{ranks.count()} * options.threads_per_rank > kMaxThreads) {
    throw InvalidArgument(fmt::format("{} ranks x {} threads are more than {} threads", ranks.count(),
                                      options.threads_per_rank, kMaxThreads));
  }
  const bool prints = ranks.self() == 0;
  LinePrinter printer(!prints);
  const ModelConfig config = read_model_config(options.model);
  const std::vector<Prompt> prompts = read_prompts(options, config);
  if (prints && !options.trace_out.empty()) check_writable("--trace-out", options.trace_out);
  if (prints && !options.chrome_trace.empty()) check_writable("--chrome-trace", options.chrome_trace);
  if (prints && !options.report.empty()) check_writable("--report", options.report);

  printer.status("loading " + options.model);
  const Placement placement = Placement::linear(num_moe_layers(config), config.router.num_experts, ranks.count());
  const DType dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  // A process keeps the experts of its own slots alone.
  std::vector<int> held;
  if (ranks.are_processes()) held.push_back(ranks.self());
  std::optional<WeightFormat> experts;
  if (!options.experts.empty()) experts = parse_weight_format(options.experts);
  const auto weights = DecoderWeights::load(SafeTensors::open(options.model), config, dtype, placement, held, experts);
  Run run = generate_on_ranks(options, ranks, weights, placement, prompts, printer);
  if (!prints) return;
  run.experts = name(weights->expert_format());
  const RunResult result = summarize(options, ranks.count(), config, placement, prompts, run);
  printer.finish(fmt::format("{} new tokens in {} steps", result.tokens, result.steps));

  if (!options.trace_out.empty()) write_trace(options.trace_out, run.load);
  if (!options.report.empty()) {
    const RunRecord record{std::move(run.rank_loads), expert_load_of(run.load), placement, placement, {}, {}};
    write_report(options.report, page_report(options, result, record));
  }
  print_report(options.json ? json_report(result) : text_report(result));
}

}  // namespace trimtab::cli
