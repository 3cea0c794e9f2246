// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/run/eplb.h"
#include "cli/run/prompts.h"
#include "cli/run/ranks.h"
#include "cli/run/run_report.h"
#include "cli/run/run_result.h"
#include "cli/run/run_trace.h"
#include "comm/rank_bytes.h"
#include "trimtab/decoder.h"
#include "trimtab/error.h"
#include "trimtab/generate.h"
#include "trimtab/npy.h"
#include "trimtab/par.h"

namespace trimtab::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::max(std::chrono::duration<double>(Clock::now() - start).count(), 1e-9);
}

std::vector<Prompt> read_prompts(const RunOptions& options, const ModelConfig& config) {
  if (!options.token_ids.empty()) return read_token_id_prompts(options.token_ids);
  if (!is_byte_level(options.model, config)) {
    throw InvalidArgument(
        fmt::format("{} has no byte-level vocabulary ({} tokens); give its prompts as --token-ids",
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
  std::optional<Placement> end;  // the placement at the end
  // Of rank 0, if it balanced.
  std::optional<BalanceMetrics> metrics;
  std::vector<BalanceEvent> events;
  int64_t layers_switched = 0;
  std::string verdict;
};

// Where ranks are processes: what the other ranks have generated, prompt i on rank i % ranks.
void gather_generations(Communicator& comm, std::span<Generation> generations) {
  std::vector<int32_t> mine;  // of each prompt: how it ended, how many tokens, the tokens
  for (auto i = static_cast<size_t>(comm.rank()); i < generations.size();
       i += static_cast<size_t>(comm.size())) {
    const std::vector<int32_t>& ids = generations[i].token_ids;
    mine.push_back(static_cast<int32_t>(generations[i].finish));
    mine.push_back(static_cast<int32_t>(ids.size()));
    mine.insert(mine.end(), ids.begin(), ids.end());
  }
  const auto all = bytes_of_ranks(comm, std::as_bytes(std::span(mine)));
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

// What rank 0 knows of the balancing when the run has ended.
void take_balancing(const Eplb& eplb, const EplbRank& rank, Run& run) {
  run.end = rank.placement();
  const Balancer* balancer = rank.balancer();
  if (balancer == nullptr) return;
  run.metrics = balancer->metrics();
  run.events.assign(balancer->events().begin(), balancer->events().end());
  run.layers_switched = balancer->layers_switched();
  if (eplb.mode == EplbMode::kScreen) run.verdict = name(balancer->verdict());
}

Run generate_on_ranks(const RunOptions& options, const Ranks& ranks, const Eplb& eplb,
                      const std::shared_ptr<const DecoderWeights>& weights,
                      const std::vector<Prompt>& prompts, LinePrinter& printer) {
  std::vector<std::vector<int32_t>> token_ids;
  for (const Prompt& prompt : prompts) token_ids.push_back(prompt.token_ids);
  Run result;
  result.generations.resize(prompts.size());
  GenerateOptions how;
  how.max_new_tokens = options.steps;
  how.max_sequences = options.max_sequences;
  how.temperature = options.temperature;
  how.seed = options.seed;
  const int64_t max_steps = max_generate_steps(weights->config(), token_ids, how,
                                               DecoderOptions().max_tokens, ranks.count());
  std::vector<std::vector<int32_t>> counts(ranks.count());  // EplbRank::counts()
  RunTrace trace(options.chrome_trace, ranks, max_steps, weights->config().num_hidden_layers);

  ranks.run([&](Communicator& comm) {
    const std::unique_ptr<ExpertSlots> slots =
        eplb.mode == EplbMode::kDynamic
            ? weights->expert_slots(eplb.start, comm, num_spares(eplb.config, eplb.start))
            : nullptr;
    Decoder decoder(weights, eplb.start, comm,
                    {.dispatcher = options.dispatcher,
                     .threads = options.threads_per_rank,
                     .split = eplb.split,
                     .trace = trace.add_thread(comm, "steps")},
                    slots.get());
    GenerateOptions own = how;
    const bool tells = comm.rank() == 0;
    EplbRank observer(eplb, decoder, slots.get(), weights->expert_bytes(), max_steps,
                      {.trace = eplb.balances() ? trace.add_thread(comm, "balancer") : nullptr,
                       .step_trace = decoder.options().trace});
    trace.begin(comm);
    comm.barrier();
    const auto start = Clock::now();
    if (tells) {
      own.progress = [&](const GenerateProgress& progress) {
        result.steps = progress.steps;
        if (!options.metrics.empty() && observer.balancer() != nullptr)
          observer.write_metrics(options.metrics);
        if (!printer.wants_status()) return;
        printer.status(fmt::format(
            "step {}: {} new tokens, {} of {} prompts to go, {:.0f} tokens/s", progress.steps,
            progress.new_tokens, progress.unfinished_prompts, prompts.size(),
            static_cast<double>(progress.new_tokens) / seconds_since(start)));
      };
    }
    generate(decoder, token_ids, own, result.generations, &observer);
    // The last agreement of generate() has brought all ranks here together.
    if (tells) {
      result.seconds = seconds_since(start);
      result.dispatcher = decoder.dispatcher();
      take_balancing(eplb, observer, result);
    }
    observer.finish();
    trace.finish(comm);
    const auto recorded = observer.counts();
    if (ranks.are_processes()) {
      gather_generations(comm, result.generations);
      const auto all = bytes_of_ranks(comm, std::as_bytes(recorded));
      std::ranges::transform(all, counts.begin(), values_of<int32_t>);
    } else {
      counts[comm.rank()].assign(recorded.begin(), recorded.end());
    }
  });
  if (ranks.self() == 0) {
    const std::vector<std::span<const int32_t>> all(counts.begin(), counts.end());
    result.load = sum_of_ranks(eplb.start, result.steps, all);
    result.rank_loads = recorded_rank_loads(result.steps, eplb.start.num_layers(), all);
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

EplbResult summarize_eplb(const Eplb& eplb, const Run& run) {
  EplbResult result;
  result.mode = name(eplb.mode);
  for (const StepRange& third : thirds(run.rank_loads.num_steps()))
    result.par_by_third.push_back(window_par(run.rank_loads, third));
  result.verdict = run.verdict;
  if (!run.metrics) return result;
  result.replans = run.metrics->rebalances;
  result.layers_switched = run.layers_switched;
  result.moves = run.metrics->moves;
  result.moved_bytes = run.metrics->moved_bytes;
  result.rolled_back = run.metrics->rolled_back_layers;
  result.stall_seconds = run.metrics->stall_seconds;
  result.plan_seconds = run.metrics->plan_seconds;
  result.predicted_gain = run.metrics->predicted_gain;
  result.realised_gain = run.metrics->realised_gain;
  return result;
}

RunResult summarize(const RunOptions& options, int ranks, const ModelConfig& config,
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
    if (config.is_moe_layer[l]) result.moe_layers.push_back(l);
  }
  result.par_per_layer = window_pars(run.rank_loads);
  for (int l = 0; l < run.rank_loads.num_layers(); ++l) {
    const std::span<const double> rows = run.rank_loads.window(l);
    result.rank_load.emplace_back(rows.begin(), rows.end());
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
    throw InvalidArgument(fmt::format("{} ranks x {} threads are more than {} threads",
                                      ranks.count(), options.threads_per_rank, kMaxThreads));
  }
  const bool prints = ranks.self() == 0;
  LinePrinter printer(!prints);
  const ModelConfig config = read_model_config(options.model);
  const std::vector<Prompt> prompts = read_prompts(options, config);
  if (prints && !options.trace_out.empty()) check_writable("--trace-out", options.trace_out);
  if (prints && !options.chrome_trace.empty())
    check_writable("--chrome-trace", options.chrome_trace);
  if (prints && !options.report.empty()) check_writable("--report", options.report);
  const Eplb eplb = read_eplb(options.eplb, config, ranks.count(), options.dispatcher);
  if (prints && eplb.mode == EplbMode::kRecord) check_writable("--eplb record:", eplb.file);
  if (prints && !options.metrics.empty()) check_writable("--metrics", options.metrics);
  if (prints && !options.placement_out.empty())
    check_writable("--placement-out", options.placement_out);
  if (!options.metrics.empty() && !eplb.balances())
    throw InvalidArgument("--metrics needs --eplb dynamic or screen");

  printer.status("loading " + options.model);
  const DType dtype = options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  // A process keeps the experts of its own slots alone.
  std::vector<int> held;
  if (ranks.are_processes()) held.push_back(ranks.self());
  std::optional<WeightFormat> experts;
  if (!options.experts.empty()) experts = parse_weight_format(options.experts);
  const auto weights = DecoderWeights::load(
      SafeTensors::open(options.model), config, dtype, eplb.start, held, experts,
      eplb.mode == EplbMode::kDynamic ? RoutedExperts::kInSlots : RoutedExperts::kShared);
  Run run = generate_on_ranks(options, ranks, eplb, weights, prompts, printer);
  if (!prints) return;
  run.experts = name(weights->expert_format());
  RunResult result = summarize(options, ranks.count(), config, prompts, run);
  if (eplb.mode != EplbMode::kOff) result.eplb = summarize_eplb(eplb, run);
  printer.finish(fmt::format("{} new tokens in {} steps", result.tokens, result.steps));

  if (!options.trace_out.empty()) write_trace(options.trace_out, run.load);
  if (eplb.mode == EplbMode::kRecord) write_record(eplb, run.load, config);
  const Placement end = run.end.value_or(eplb.start);
  if (!options.placement_out.empty()) write_map(options.placement_out, end, config);
  if (!options.report.empty()) {
    const RunRecord record{
        std::move(run.rank_loads),
        expert_load_of(run.load),
        eplb.start,
        end,
        std::move(run.events),
        run.metrics,
        eplb.start.num_slots() > eplb.start.num_experts() ? std::string(name(eplb.split)) : ""};
    write_report(options.report, page_report(options, result, record));
  }
  print_report(options.json ? json_report(result) : text_report(result));
}

}  // namespace trimtab::cli
