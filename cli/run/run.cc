// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/run/agreement.h"
#include "cli/run/dry_run.h"
#include "cli/run/eplb_setup.h"
#include "cli/run/interrupt.h"
#include "cli/run/job.h"
#include "cli/run/outputs.h"
#include "cli/run/prompts.h"
#include "cli/run/ranks.h"
#include "cli/run/run_files.h"
#include "cli/run/run_observer.h"
#include "cli/run/run_recorder.h"
#include "cli/run/run_result.h"
#include "cli/run/run_trace.h"
#include "cli/run/wire.h"
#include "comm/rank_bytes.h"
#include "trimtab/decoder.h"
#include "trimtab/error.h"
#include "trimtab/generate.h"
#include "trimtab/par.h"

namespace trimtab::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::max(std::chrono::duration<double>(Clock::now() - start).count(), 1e-9);
}

// Where ranks are processes: what the other ranks have generated, prompt i on the ranks of
// data-parallel group i % dp, of which the first one has the results.
void gather_generations(Communicator& comm, const ParallelLayout& layout,
                        std::span<Generation> generations) {
  // For each prompt: how it ended, how many tokens and routes, the tokens and the routes.
  std::vector<int32_t> mine;
  const int64_t prompts = std::ssize(generations);
  const bool leads = layout.leads(comm.rank());
  for (int64_t i = layout.dp_rank(comm.rank()); leads && i < prompts; i += layout.dp) {
    const std::vector<int32_t>& ids = generations[i].token_ids;
    mine.push_back(static_cast<int32_t>(generations[i].finish));
    const std::vector<int32_t>& routes = generations[i].routes;
    mine.push_back(static_cast<int32_t>(ids.size()));
    mine.push_back(static_cast<int32_t>(routes.size()));
    mine.insert(mine.end(), ids.begin(), ids.end());
    mine.insert(mine.end(), routes.begin(), routes.end());
  }
  const auto all = bytes_of_ranks(comm, std::as_bytes(std::span(mine)));
  for (int group = 0; group < layout.dp; ++group) {
    const std::vector<int32_t> values =
        values_of<int32_t>(all[group * layout.ranks_of_sequences()]);
    auto value = values.begin();
    for (int64_t i = group; i < prompts; i += layout.dp) {
      generations[i].finish = static_cast<Finish>(*value++);
      const auto count = *value++, picks = *value++;
      generations[i].token_ids.assign(value, value + count);
      generations[i].routes.assign(value + count, value + count + picks);
      value += count + picks;
    }
  }
}

// What rank 0 knows of the balancing when the run has ended.
void take_balancing(const EplbSetup& eplb, const RunObserver& rank, RunResult& result) {
  result.end = rank.placement();
  const Balancer* balancer = rank.balancer();
  if (balancer == nullptr) return;
  result.metrics = balancer->metrics();
  result.events.assign(balancer->events().begin(), balancer->events().end());
  result.layers_switched = balancer->layers_switched();
  if (eplb.config.screen) result.verdict = name(balancer->verdict());
}

ExpertSlots::Sizes sizes_of(const ExpertSlots* slots) {
  if (slots == nullptr) return {};
  return {slots->expert_bytes(), slots->bytes(), slots->staging_bytes()};
}

// What counts the bytes of decode steps. With a layout ranks share tokens and parts of weights in
// ways that it does not know.
std::unique_ptr<bench::StepWork> work_of_run(const Job& job, const DecoderWeights& weights,
                                             const ExpertSlots* slots) {
  if (job.layout) return nullptr;
  return std::make_unique<bench::StepWork>(
      weights, parse_kv_format(job.options.kv),
      slots != nullptr ? slots->expert_bytes() : weights.expert_bytes());
}

// The sum of the ranks' numbers. Collective.
double sum_over_ranks(Communicator& comm, double mine) {
  double sum = 0;
  for (const auto& bytes : bytes_of_ranks(comm, std::as_bytes(std::span(&mine, 1))))
    sum += values_of<double>(bytes).front();
  return sum;
}

// Generates on all ranks, and fills in what was measured. Returns what each prompt gave: [prompts].
// stream: null unless outputs are printed while they grow.
std::vector<Generation> generate_on_ranks(const Job& job, const Ranks& ranks,
                                          const std::shared_ptr<const DecoderWeights>& weights,
                                          RunRecorder& recorder, LinePrinter& printer,
                                          OutputStream* stream, RunResult& result) {
  const RunOptions& options = job.options;
  const EplbSetup& eplb = job.eplb;
  const std::vector<std::vector<int32_t>> token_ids = job.token_ids();
  std::vector<Generation> generations(token_ids.size());
  const GenerateOptions how = generate_options(job);
  const int64_t max_steps = max_generate_steps(job.config, token_ids, how, options.step_tokens,
                                               job.layout ? job.layout->dp : ranks.count());
  RunTrace trace(options.chrome_trace, ranks, max_steps, job.config.num_hidden_layers);

  ranks.run([&](Communicator& comm) {
    const std::unique_ptr<ExpertSlots> slots =
        job.moves_experts()
            ? weights->expert_slots(eplb.start, comm, num_spares(eplb.config, eplb.start),
                                    options.threads_per_rank)
            : nullptr;
    DecoderOptions own_options = decoder_options(job, *weights, comm);
    own_options.trace = trace.add_thread(comm, "steps");
    Decoder decoder(weights, eplb.start, comm, own_options, slots.get());
    GenerateOptions own = how;
    const bool tells = comm.rank() == 0;
    if (stream) {
      own.grown = [&](int64_t prompt, const Generation& so_far, bool ended) {
        stream->grow(prompt, so_far, ended);
      };
    }
    // mpiexec ends the processes itself.
    if (!ranks.are_processes()) own.interrupted = Interrupt::came;
    RunObserver observer(
        eplb, !options.force_balance, decoder, slots.get(), weights->expert_bytes(), recorder,
        ranks.are_processes() ? 0 : comm.rank(),
        {.trace = eplb.mode.balances() ? trace.add_thread(comm, "balancer") : nullptr,
         .step_trace = decoder.options().trace,
         .work = work_of_run(job, *weights, slots.get())});
    trace.begin(comm);
    if (tells) {
      result.dispatcher = decoder.dispatcher();
      if (stream) {
        printer.finish("loaded");
        print_report(report_title(result));
      }
    }
    comm.barrier();
    const auto start = Clock::now();
    if (tells) {
      own.progress = [&](const GenerateProgress& progress) {
        result.progress = progress;
        if (!options.metrics.empty()) observer.write_metrics(options.metrics);
        if (stream || !printer.wants_status()) return;
        printer.status(fmt::format(
            "step {}: {} new tokens, {} of {} prompts to go, {:.0f} tokens/s", progress.steps,
            progress.new_tokens, progress.unfinished_prompts, token_ids.size(),
            static_cast<double>(progress.new_tokens) / seconds_since(start)));
      };
    }
    const SequenceMemory sequences = generate(decoder, token_ids, own, generations, &observer);
    // The last agreement of generate() has brought all ranks here together.
    if (tells) result.seconds = seconds_since(start);
    observer.finish();
    result.memory.ranks[comm.rank()] =
        rank_memory(job, *weights, comm.rank(), sizes_of(slots.get()), decoder, sequences);
    const SentBytes sent = sent_by_all(comm, decoder.sent());
    const double decode_bytes = sum_over_ranks(comm, observer.decode_bytes());
    if (tells) {
      result.decode_bytes = decode_bytes;
      result.wire = {decoder.rows_on_wire(), decoder.results_on_wire(), sent};
      result.overlapped_steps = decoder.overlapped_steps();
      take_balancing(eplb, observer, result);
      if (!options.metrics.empty()) observer.write_metrics(options.metrics);
    }
    observer.close();
    trace.finish(comm);
    if (!ranks.are_processes()) return;
    gather_generations(comm, decoder.layout(), generations);
    gather(comm, result.memory);
    recorder.merge(&comm);
  });
  if (!ranks.are_processes()) recorder.merge(nullptr);
  if (ranks.self() == 0) trace.write();
  return generations;
}

OutputRules output_rules(const Job& job) {
  return {.has_text = is_byte_level(job.options.model, job.config), .stops = job.stops};
}

void add_outputs(const Job& job, const std::vector<Generation>& generations, RunResult& result) {
  const OutputRules rules = output_rules(job);
  for (int64_t i = 0; i < std::ssize(job.prompts); ++i) {
    result.outputs.push_back(output_of(job.prompts[i], generations[i], rules));
    result.prompt_tokens += std::ssize(job.prompts[i].token_ids);
    result.tokens += std::ssize(generations[i].token_ids);
  }
  result.steps = result.progress.steps;
}

void add_levels(const Job& job, RunRecorder& recorder, RunResult& result) {
  if (job.options.force_balance) return;
  result.rank_load = recorder.rank_rows();
  result.expert_load = recorder.expert_rows();
  for (const std::vector<int64_t>& ranks : result.rank_load)
    result.par_per_layer.push_back(par(ranks));
  if (!job.options.cost.empty()) {
    for (const std::vector<int64_t>& ranks : recorder.rank_times())
      result.par_time_per_layer.push_back(par(ranks));
  }
  if (job.eplb.mode.kind != EplbMode::Kind::kOff) {
    result.par_by_third = recorder.par_by_third();
    if (!job.options.cost.empty()) result.par_time_by_third = recorder.par_time_by_third();
  }
  if (job.eplb.mode.kind == EplbMode::Kind::kRecord) {
    result.record_file = valid_utf8(job.eplb.mode.file);
    if (const std::optional<TokenSample>& tokens = recorder.token_sample()) {
      result.tokens_sampled = tokens->num_tokens();
      result.tokens_routed = tokens->tokens_seen;
      result.sources_recorded = tokens->num_ranks > 0;
    }
  }
  if (!job.options.report.empty()) result.loads = recorder.rank_loads();
}

StepWants step_wants(const Job& job) {
  const EplbMode::Kind mode = job.eplb.mode.kind;
  return {.rank_rows = mode != EplbMode::Kind::kOff || !job.options.report.empty(),
          .rank_times = mode != EplbMode::Kind::kOff && !job.options.cost.empty(),
          .expert_rows = mode == EplbMode::Kind::kRecord || !job.options.trace_out.empty(),
          .sampled_picks = records_tokens(job.eplb.mode) ? job.config.router.top_k : 0,
          .layout = job.layout};
}

// The report has the prompts that were answered; the exit status says that not all were.
void check_finished(const std::vector<Generation>& generations) {
  for (int64_t i = 0; i < std::ssize(generations); ++i) {
    if (generations[i].finish != Finish::kNotFinite) continue;
    throw Error(
        fmt::format("prompt {} ended after {} new tokens: the logits of the next one have "
                    "a NaN or an infinity",
                    i + 1, generations[i].token_ids.size()));
  }
}

// Threads of one process have everything in common.
void check_ranks_alike(const Job& job, const SafeTensors& tensors, const Ranks& ranks) {
  if (!ranks.are_processes()) return;
  std::exception_ptr difference;
  ranks.run([&](Communicator& comm) {
    try {
      require_same_run(comm, job.options, job.config, tensors, job.eplb, job.prompts, job.routes,
                       job.stops);
    } catch (const InvalidArgument&) {
      // All ranks throw the same; none needs to fail the group for it.
      difference = std::current_exception();
    }
  });
  if (difference) std::rethrow_exception(difference);
}

void check_files_writable(const RunOptions& options, const EplbMode& eplb) {
  if (eplb.kind == EplbMode::Kind::kRecord) check_writable("--eplb record:", eplb.file);
  check_writable("--trace-out", options.trace_out);
  check_writable("--routes-out", options.routes_out);
  check_writable("--chrome-trace", options.chrome_trace);
  check_writable("--report", options.report);
  check_writable("--metrics", options.metrics);
  check_writable("--placement-out", options.placement_out);
}

}  // namespace

void run(const RunOptions& given) {
  const int asked = given.ranks > 0 ? given.ranks : given.layout.ranks();
  const Ranks ranks(asked, given.layout.ranks_of_a_group(),
                    {.timeout = std::chrono::seconds(given.timeout)}, given.progress_thread);
  if (given.progress_thread && ranks.hosts() == 1)
    throw UsageError("--progress-thread: it has no effect where all ranks are on one host");
  if (given.overlap && ranks.count() == 1)
    throw UsageError("--overlap: one rank waits for nobody; it takes --ranks 2 or more");
  RunOptions options = given;
  options.threads_per_rank = threads_per_rank(options, ranks);
  const bool prints = ranks.self() == 0;
  LinePrinter printer(!prints);
  ModelConfig config = read_model_config(options.model);
  std::vector<Prompt> prompts =
      read_prompts(options.model, config, options.prompts, options.token_ids);
  const std::optional<ParallelLayout> layout = layout_of(options.layout, ranks.count());
  EplbSetup eplb = set_up_eplb(options, config, ranks.count(), layout);
  std::vector<std::vector<int32_t>> routes;
  if (!options.routes_in.empty()) routes = read_routes(options.routes_in, prompts.size(), config);
  std::vector<std::vector<int32_t>> stops =
      read_stops(options.model, config, options.stops, options.stop_ids);
  const SafeTensors tensors = SafeTensors::open(options.model);
  find_dtype(options.formats, tensors, config);
  const Job job{options, std::move(config), std::move(prompts), std::move(eplb),
                layout,  std::move(routes), std::move(stops)};
  check_ranks_alike(job, tensors, ranks);
  tensors.release_pages();  // the check has looked at each tensor
  if (prints && !options.dry_run) check_files_writable(options, job.eplb.mode);

  if (options.dry_run) {
    const RunResult result = dry_run(job, tensors, ranks, printer);
    if (prints) print_report(options.json ? dry_run_json(result) : dry_run_text(result));
    return;
  }
  const auto weights = load_weights(
      job, tensors, ranks, printer,
      {.routed = job.moves_experts() ? RoutedExperts::kInSlots : RoutedExperts::kShared});
  RunResult result = begin_result(job, ranks.count(), *weights);
  result.memory = memory_of_run(tensors, ranks);
  RunRecorder recorder(job.eplb.start, ranks.count(), ranks.are_processes() ? 1 : ranks.count(),
                       step_wants(job));
  std::optional<OutputStream> stream;
  if (options.stream && prints) stream.emplace(job.prompts, output_rules(job));
  std::optional<Interrupt> interrupt(std::in_place);
  const std::vector<Generation> generations = generate_on_ranks(
      job, ranks, weights, recorder, printer, stream ? &*stream : nullptr, result);
  interrupt.reset();
  if (!prints) return;
  add_outputs(job, generations, result);
  add_levels(job, recorder, result);
  printer.finish(fmt::format("{} new tokens in {} steps", result.tokens, result.steps));

  if (!options.trace_out.empty()) write_trace(options.trace_out, recorder);
  if (!options.routes_out.empty()) write_routes(options.routes_out, generations, job.config);
  if (job.eplb.mode.kind == EplbMode::Kind::kRecord)
    write_record(job.eplb.mode.file, recorder, job.eplb.start, job.config);
  if (!options.placement_out.empty())
    write_placement_of(options.placement_out, result.end, job.config);
  if (!options.report.empty()) write_report(options.report, run_page(result));
  if (stream) {
    stream->finish(result.outputs);
    print_report(report_figures(result));
  } else {
    print_report(options.json ? json_report(result) : text_report(result));
  }
  check_finished(generations);
  // A shell that waits for this command must see that Ctrl-C ended it.
  if (Interrupt::came()) std::raise(SIGINT);
}

}  // namespace trimtab::cli
