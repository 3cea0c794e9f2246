// SPDX-License-Identifier: Apache-2.0
// The `trimtab` command: options in, one subcommand run, errors as one line. Exit status 1: it
// failed; 2: wrong usage.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <system_error>

#include "cli/bench/bench_options.h"
#include "cli/output/validators.h"
#include "cli/plan/planning_options.h"
#include "cli/run/run.h"

namespace {

using trimtab::cli::is_given;
using trimtab::cli::one_of;
using trimtab::cli::one_to;
using trimtab::cli::zero_or_more;

constexpr const char* kRunFooter = R"(
What it does. The prompts are shared out over the ranks, prompt i to rank i modulo ranks; each rank keeps the
attention of its own sequences and its share of every layer's experts, and in each MoE layer the ranks send their
tokens to the experts that the router picked. Ranks are threads of this process; under mpiexec each process is a rank
(as many as mpiexec starts; rank 0 prints), on one host or several. The text does not depend on the number of ranks with
the dispatchers pull (which auto takes on one host), all_to_all and mc2, bit for bit.

What it prints. The text of each prompt, new tokens per second, and for each MoE layer its PAR, the peak-to-average
rank load: how many rows the busiest rank's experts got, over the mean of all ranks. At 1.00 all ranks are level; at
2.00 the busiest has twice the mean, and all others wait for it for half of the time.

Models. A directory with config.json and safetensors in the Hugging Face layout; model_type mixtral, qwen2_moe,
qwen3_moe or olmoe. Prompts are text for models with a byte-level vocabulary (token id = byte, ids from 256 special),
with the config's beginning-of-sequence token in front; token ids for all others.

Exit status: 0 done, 1 it failed, 2 wrong usage. TRIMTAB_ISA chooses the kernels (docs/embedding.md).

Examples
  trimtab run models/tiny-moe
  trimtab run models/tiny-moe --ranks 7 --prompts my_prompts.txt --steps 200 --temperature 0.8 --seed 3
  mpiexec -n 4 trimtab run models/tiny-moe
  trimtab run models/tiny-moe --json --trace-out trace.npy > run.json
  trimtab run models/tiny-moe --report run.html --chrome-trace run.json
  trimtab run models/tiny-moe --prompts models/tiny-moe/domain_shift.txt --max-sequences 12 --temperature 0.7 \
    --eplb dynamic --report run.html
  trimtab run Qwen3-30B-A3B --dtype bf16 --token-ids "785,6722,315;9707,11"
)";

// CLI11 would take "-1" as a huge unsigned number, and what is too large as the largest.
std::string is_seed(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size()
             ? ""
             : text + " is not a whole number from 0 to 2^64 - 1";
}

std::string is_temperature(const std::string& text) {
  float value = -1.0F;
  return CLI::detail::lexical_cast(text, value) && value >= 0.0F && value <= 1000.0F
             ? ""
             : text + " is not a number from 0 to 1000";
}

void add_run(CLI::App& app, trimtab::cli::RunOptions& options) {
  CLI::App* run = app.add_subcommand(
      "run", "Generate text with an MoE model, its experts shared out over ranks");
  run->add_option("MODEL", options.model, "Directory of the model (Hugging Face layout)")
      ->required()
      ->check(is_given())
      ->type_name("");
  run->add_option("--ranks", options.ranks,
                  "Ranks (threads of this process) that share the experts [4]")
      ->check(one_to(1024))
      ->type_name("N");
  CLI::Option* prompts =
      run->add_option("--prompts", options.prompts, "Text prompts, one a line [MODEL/prompts.txt]")
          ->type_name("FILE")
          ->check(is_given());
  run->add_option("--token-ids", options.token_ids,
                  "Prompts as token ids, a file or the ids: commas or blanks between ids, ';' or "
                  "end of line between "
                  "prompts; taken as they are")
      ->type_name("FILE|IDS")
      ->check(is_given())
      ->excludes(prompts);
  run->add_option("--steps", options.steps, "Most new tokens of each prompt")
      ->check(one_to(std::numeric_limits<int>::max()))
      ->type_name("N")
      ->capture_default_str();
  run->add_option("--dispatcher", options.dispatcher,
                  "How tokens get to experts: auto, pull, all_gather, all_to_all, mc2, packed, "
                  "hybrid (see docs/dispatch.md)")
      ->check(
          one_of({"auto", "pull", "fused", "all_gather", "all_to_all", "mc2", "packed", "hybrid"}))
      ->type_name("NAME")
      ->capture_default_str();
  run->add_option("--dtype", options.dtype, "How weights are kept and rounded: f32 or bf16")
      ->check(one_of({"f32", "bf16"}))
      ->type_name("NAME")
      ->capture_default_str();
  run->add_option("--experts", options.experts,
                  "How experts are kept: f32, bf16, f16, w8a8, w4a8, w4a8-g32, w4a8-channel, "
                  "mxfp8, fp8 or mxfp4; by default "
                  "as the checkpoint has them if it is quantised, else as --dtype")
      ->check(is_given())
      ->type_name("FORMAT");
  run->add_option("--threads-per-rank", options.threads_per_rank, "Compute threads of each rank")
      ->check(one_to(1024))
      ->type_name("N")
      ->capture_default_str();
  run->add_option("--timeout", options.timeout,
                  "Seconds that a rank waits for another before it gives up")
      ->check(one_to(1'000'000))
      ->type_name("S")
      ->capture_default_str();
  run->add_option("--temperature", options.temperature, "0: the most likely token; above: sampled")
      ->check(CLI::Validator(is_temperature, ""))
      ->type_name("T")
      ->capture_default_str();
  run->add_option("--seed", options.seed, "Of the sampling; the same seed gives the same text")
      ->check(CLI::Validator(is_seed, ""))
      ->type_name("N")
      ->capture_default_str();
  run->add_option("--trace-out", options.trace_out,
                  "Writes the rows each expert got as int32 [steps, MoE layers, experts]")
      ->type_name("FILE.npy")
      ->check(is_given());
  run->add_option("--chrome-trace", options.chrome_trace,
                  "Writes what each rank did when, for ui.perfetto.dev (see docs/run.md)")
      ->type_name("FILE.json")
      ->check(is_given());
  run->add_option("--report", options.report, "Writes a page with drawings, for a browser")
      ->type_name("FILE.html")
      ->check(is_given());
  run->add_option("--max-sequences", options.max_sequences,
                  "Sequences of one rank that are in a step together; the other prompts wait [as "
                  "many as fit]")
      ->check(one_to(1 << 20))
      ->type_name("N");
  run->add_option("--eplb", options.eplb.mode,
                  "Where experts are: off (in order), static:FILE (the map of a file), record:FILE "
                  "(writes loads and map), "
                  "dynamic (balanced while it runs), screen (plans and judges, changes nothing); "
                  "dynamic:FILE and screen:FILE "
                  "begin with the map of a file; see docs/live.md")
      ->check(is_given())
      ->type_name("MODE")
      ->capture_default_str();
  run->add_option("--eplb-config", options.eplb.config, "How to balance (see docs/live.md)")
      ->check(is_given())
      ->type_name("FILE.json");
  run->add_option("--redundant-experts", options.eplb.redundant_experts,
                  "Slots beside one for each expert, over all ranks [one a rank with --eplb "
                  "dynamic and screen]")
      ->check(zero_or_more())
      ->type_name("N");
  run->add_option("--placement-out", options.placement_out,
                  "Writes the map at the end, for --eplb dynamic:FILE")
      ->check(is_given())
      ->type_name("FILE.json");
  run->add_option("--metrics", options.metrics,
                  "Writes the metrics of the balancing for Prometheus' textfile collector")
      ->check(is_given())
      ->type_name("FILE.prom");
  run->add_flag("--json", options.json, "One JSON object on standard output instead of text");
  run->footer(kRunFooter);
  run->callback([&options] { trimtab::cli::run(options); });
}

const char* what_must_fit(const CLI::App& app) {
  if (app.got_subcommand("run")) return "the weights, and the keys and values of all prompts,";
  if (app.got_subcommand("bench")) return "the weights (--cold-mb) and the rows of all tokens";
  return "the loads";
}

int usage_error(const std::string& what, const char* command) {
  std::fprintf(stderr, "trimtab: %s (see trimtab %s--help)\n", what.c_str(), command);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Trimtab runs mixture-of-experts models expert-parallel and plans placements that keep the "
      "ranks level.",
      "trimtab");
  app.set_version_flag("--version", std::string("trimtab ") + TRIMTAB_VERSION);
  app.require_subcommand(1);
  app.footer("\ntrimtab COMMAND --help tells more about a command.");
  trimtab::cli::RunOptions run_options;
  add_run(app, run_options);
  trimtab::cli::InspectOptions inspect_options;
  trimtab::cli::add_inspect(app, inspect_options);
  trimtab::cli::PlanOptions plan_options;
  trimtab::cli::add_plan(app, plan_options);
  trimtab::cli::CheckOptions check_options;
  trimtab::cli::add_check(app, check_options);
  trimtab::cli::ConvertOptions convert_options;
  trimtab::cli::add_convert(app, convert_options);
  trimtab::cli::ReplayOptions replay_options;
  trimtab::cli::add_replay(app, replay_options);
  trimtab::cli::BenchOptions bench_options;
  trimtab::cli::add_bench(app, bench_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const auto commands = app.get_subcommands();  // those on the command line
    if (!commands.empty())
      return usage_error(error.what(), (commands[0]->get_name() + " ").c_str());
    // CLI11 would only say that a command is missing.
    if (argc > 1 && argv[1][0] != '-')
      return usage_error(std::string("there is no command ") + argv[1], "");
    return usage_error(error.what(), "");
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "trimtab: out of memory: %s must fit\n", what_must_fit(app));
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trimtab: %s\n", error.what());
    return 1;
  }
  return 0;
}
