// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_options.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "cli/options/dispatchers.h"
#include "cli/run/eplb_mode.h"
#include "cli/run/run.h"
#include "trimtab/split.h"

namespace trimtab::cli {

namespace {

constexpr const char* kRunFooter = R"(
What it does. The prompts are shared out over the ranks, prompt i to rank i modulo ranks; each rank
keeps the attention of its own sequences and its share of every layer's experts, and in each MoE
layer the ranks send their tokens to the experts that the router picked. Ranks are threads of this
process; under mpiexec each process is a rank (as many as mpiexec starts; rank 0 prints), on one
host or several. Without --ranks there is one, with a thread on every core: on one host that is the
fastest. Hardware threads of one core, and what affinity or a quota takes away, don't count.

What it prints. The text of each prompt, new tokens per second, and for each MoE layer its
PAR, the peak-to-average rank load: how many rows the busiest rank's experts got, over the mean of
all ranks. At 1.00 all ranks are level; at 2.00 the busiest has twice the mean, and all others wait
for it for half of the time.

Dispatchers. With {0} the text does not depend on the number
of ranks, bit for bit. auto takes pull on one host.
{1}
Models. A directory with config.json and safetensors in the Hugging Face layout; model_type mixtral,
qwen2_moe, qwen3_moe or olmoe. Prompts are text for models with a byte-level vocabulary (token id =
byte, ids from 256 special), with the config's beginning-of-sequence token in front; token ids for
all others.

Exit status: 0 done, 1 it failed, 2 wrong usage. TRIMTAB_ISA chooses the kernels
(docs/embedding.md).

Examples
  trimtab run models/tiny-moe
  trimtab run models/tiny-moe --tp 2 --dp 2 --no-ep
  trimtab run models/tiny-moe --ranks 7 --prompts my_prompts.txt --steps 200 --temperature 0.8
  mpiexec -n 4 trimtab run models/tiny-moe
  trimtab run models/tiny-moe --json --trace-out trace.npy > run.json
  trimtab run models/tiny-moe --ranks 4 --report run.html --chrome-trace run.json
  trimtab run models/tiny-moe --ranks 4 --prompts models/tiny-moe/domain_shift.txt \
    --max-sequences 12 --temperature 0.7 --eplb dynamic --report run.html
  trimtab run Qwen3-30B-A3B --dtype bf16 --token-ids "785,6722,315;9707,11"
)";

void add_work(Command& run, RunOptions& options) {
  add_model(run, options);
  Option prompts =
      run.text("--prompts", options.prompts, "Text prompts, one a line [MODEL/prompts.txt]");
  prompts.type("FILE");
  run.text("--token-ids", options.token_ids,
           "Prompts as token ids, a file or the ids: commas or blanks between ids, ';' or end of "
           "line between prompts; taken as they are")
      .type("FILE|IDS")
      .excludes(prompts);
  run.number("--steps", options.steps, "Most new tokens of each prompt")
      .between(1, std::numeric_limits<int>::max())
      .shows_default();
  add_model_settings(run, options);
  run.flag("--progress-thread", options.progress_thread,
           "Over several hosts: a thread of each process moves messages while it computes");
  run.number("--step-tokens", options.step_tokens,
             "Most tokens of a rank in one step: longer prompts are read in chunks, between the "
             "tokens of others; memory is reserved for so many")
      .between(1, 1 << 20)
      .shows_default();
  run.flag("--overlap", options.overlap,
           "Each MoE layer takes a step's tokens as two microbatches that hide each other's waits, "
           "where every rank has two tokens or more; the same text, more memory");
  run.flag("--force-balance", options.force_balance,
           "A profile run: tokens go to random experts, so that ranks are as level as chance has "
           "it; the text means nothing, and no load is recorded");
  run.number("--max-sequences", options.max_sequences,
             "Sequences of one rank that are in a step together; the other prompts wait [as many "
             "as fit]")
      .between(1, 1 << 20);
}

void add_sampling(Command& run, RunOptions& options) {
  Sampling& sampling = options.sampling;
  run.number("--temperature", sampling.temperature, "0: the most likely token; above: sampled")
      .between_reals(0, 1000)
      .type("T")
      .shows_default();
  run.number("--top-k", sampling.top_k, "Draws from the K most likely tokens alone; 0: from all")
      .between(0, std::numeric_limits<int>::max())
      .type("K")
      .shows_default();
  run.number("--top-p", sampling.top_p,
             "Draws from the fewest tokens that have this share of the probability")
      .between_reals(1e-6, 1)
      .type("P")
      .shows_default();
  run.number("--min-p", sampling.min_p,
             "Draws from tokens that are at least this many times as likely as the most likely one")
      .between_reals(0, 1)
      .type("P")
      .shows_default();
  run.flag("--model-sampling", options.model_sampling,
           "Takes what is not said of these four from the model's generation_config.json");
  run.number("--seed", options.seed, "Seed of the sampling; the same seed gives the same text")
      .shows_default();
  run.repeated("--stop", options.stops,
               "A text that ends an output, which does not show it (models with text prompts); may "
               "be given several times")
      .type("TEXT");
  run.text("--stop-ids", options.stop_ids,
           "Token ids that end an output: commas between ids, ';' between stops of several")
      .type("IDS");
}

void add_balancing(Command& run, RunOptions& options) {
  run.text("--eplb", options.eplb,
           "Where experts are: off (in order), static:FILE (the placement of a file), record:FILE "
           "(writes loads and placement), dynamic (balanced while it runs), screen (plans and "
           "judges, changes nothing); dynamic:FILE and screen:FILE begin with the placement of a "
           "file; see docs/live.md")
      .parsed_by([](const std::string& text) { parse_eplb_mode(text); })
      .type("MODE")
      .shows_default();
  run.text("--eplb-config", options.eplb_config, "How to balance (see docs/live.md)")
      .type("FILE.json");
  run.text(
         "--split", options.split,
         "How picks are shared out over replicas: static, round_robin, split (fewest rows on the "
         "busiest rank) or time (least time there, see --cost); by default as --eplb-config says, "
         "or time where --cost is given")
      .parsed_by([](const std::string& text) { parse_split_rule(text); })
      .type("RULE");
  run.text("--cost", options.cost,
           "What an expert takes, for --split time: measure (at start), rows (as many times as it "
           "has rows), or a file that trimtab bench experts --cost-out wrote")
      .type("measure|rows|FILE");
  run.number("--redundant-experts", options.redundant_experts,
             "Slots beside one for each expert, over all ranks [one a rank with --eplb dynamic and "
             "screen]")
      .between(0, std::numeric_limits<int>::max());
}

void add_files(Command& run, RunOptions& options) {
  run.text("--placement-out", options.placement_out,
           "Writes the placement at the end, for --eplb dynamic:FILE")
      .type("FILE.json");
  run.text("--trace-out", options.trace_out,
           "Writes the rows each expert got as int32 [steps, MoE layers, experts]")
      .type("FILE.npy");
  run.text("--routes-out", options.routes_out,
           "Writes the experts that the routers picked, for --routes-in, as int32 [prompts, "
           "positions, MoE layers, experts of a token]; -1 behind the last position of a prompt")
      .type("FILE.npy");
  run.text("--routes-in", options.routes_in,
           "Takes the experts of such a file instead of those that the routers would pick, with "
           "this run's weights; positions that it does not have are routed")
      .type("FILE.npy");
  run.text("--chrome-trace", options.chrome_trace,
           "Writes what each rank did when, for ui.perfetto.dev (see docs/run.md)")
      .type("FILE.json");
  run.text("--report", options.report, "Writes a page with drawings, for a browser")
      .type("FILE.html");
  run.text("--metrics", options.metrics,
           "Writes the metrics of the balancing for Prometheus' textfile collector")
      .type("FILE.prom");
  run.flag("--stream", options.stream,
           "Prints each output while it grows, in the order of the prompts (of processes: those of "
           "rank 0 up to the first of another rank)");
  run.flag("--dry-run", options.dry_run,
           "Only says how much memory each rank would take; reads no weights, writes no files");
  run.flag("--json", options.json, "One JSON object on standard output instead of text");
}

// --model-sampling: what the command line does not say.
void take_model_sampling(const Command& run, RunOptions& options) {
  const Sampling model = read_sampling(options.model);
  Sampling& own = options.sampling;
  if (!run.given("--temperature")) own.temperature = model.temperature;
  if (!run.given("--top-k")) own.top_k = model.top_k;
  if (!run.given("--top-p")) own.top_p = model.top_p;
  if (!run.given("--min-p")) own.min_p = model.min_p;
}

// A profile run is no load, so nothing may record it.
void check_profile(const RunOptions& options, EplbMode::Kind eplb) {
  if (!options.force_balance) return;
  const std::pair<const char*, bool> recording[] = {
      {"--trace-out", !options.trace_out.empty()},
      {"--routes-out", !options.routes_out.empty()},
      {"--routes-in", !options.routes_in.empty()},
      {"--report", !options.report.empty()},
      {"--eplb", eplb != EplbMode::Kind::kOff && eplb != EplbMode::Kind::kStatic}};
  for (const auto& [option, given] : recording) {
    if (given)
      throw UsageError(
          fmt::format("{}: with --force-balance nothing is routed or recorded", option));
  }
}

// What has no effect is refused, so that nobody counts on it.
void check(const Command& run, const RunOptions& options) {
  const EplbMode eplb = parse_eplb_mode(options.eplb);
  check_profile(options, eplb.kind);
  if (options.sampling.temperature == 0) {
    for (const char* option : {"--seed", "--top-k", "--top-p", "--min-p"}) {
      if (!run.given(option)) continue;
      throw UsageError(std::string(option) + ": it has no effect without --temperature above 0");
    }
  }
  if (options.stream && options.json)
    throw UsageError("--stream: --json is one object, at the end");
  if (!options.metrics.empty() && !eplb.balances())
    throw UsageError("--metrics: it needs --eplb dynamic or screen");
  if (eplb.begins_with_file() && options.redundant_experts >= 0)
    throw UsageError("--redundant-experts: the placement of --eplb says it");
  if (!options.cost.empty() && !options.split.empty() && options.split != "time")
    throw UsageError("--cost: it has no effect on --split " + options.split);
  if (options.split == "time" && options.cost.empty())
    throw UsageError("--split time: say --cost measure, rows or FILE");
  const bool has_replicas = options.redundant_experts > 0 || eplb.begins_with_file();
  if (!options.eplb_config.empty() && !eplb.balances() && !has_replicas) {
    throw UsageError(
        "--eplb-config: it has no effect without --eplb dynamic or screen, or replicas");
  }
}

}  // namespace

void add_run(Command& program, RunOptions& options) {
  Command run =
      program.add("run", "Generate text with an MoE model, its experts shared out over ranks");
  add_work(run, options);
  add_sampling(run, options);
  add_layout(run, options.layout);
  add_balancing(run, options);
  add_files(run, options);
  const std::string exact = dispatcher_names([](const DispatcherKind& kind) {
    return is_for_decoders(kind) && kind.order == SumOrder::kById;
  });
  run.footer(fmt::format(kRunFooter, exact, lines_of_dispatchers(is_for_decoders)));
  run.runs([&options, run] {
    if (options.model_sampling) take_model_sampling(run, options);
    check(run, options);
    trimtab::cli::run(options);
  });
}

}  // namespace trimtab::cli
