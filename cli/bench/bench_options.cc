// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_options.h"

#include "cli/output/validators.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

constexpr int kMostRows = 1 << 16;
constexpr int kMostMegabytes = 1 << 20;

constexpr const char* kBenchFooter = R"(
trimtab bench --isa lists the instruction sets of this CPU and measures what each can reach: multiplications and
additions per second of f32, bf16 and int8 dot products, and bytes per second from cold memory.
trimtab bench experts compares the expert kernels with that; see trimtab bench experts --help.
trimtab bench dispatch times bringing tokens to their experts and back; see trimtab bench dispatch --help.
)";

constexpr const char* kExpertsFooter = R"(
What it does. Packs as many experts with random weights as it takes to find none in a cache, checks results against a
reference in double, then times: before every call it measures the peak and the stream of this machine, so that a busy
neighbour slows both sides alike. What it prints are medians of these pairs and the quartiles.

One expert's products (gate_up with its activation, down) at each --m rows; or with --layer the whole stage at each
--tokens: rows sorted by expert, products, weighted sum, for experts that are equally popular (natural) and for experts
of which the n-th is picked in proportion to 1/n (skewed).

--json: {isa, threads, ceilings: [...], rows: [...]}; rows have shape, gemm, dtype, isa, m, threads, ms, gflops,
pct_stream, pct_peak, pct_roof, or with --layer model, dtype, isa, routing, tokens, threads, active_experts, ms, gflops,
pct_stream, pct_peak, pct_roof, pct_moving.

Exit status: 0 done, 1 a result was wrong or it failed, 2 wrong usage. TRIMTAB_ISA chooses kernels and the peak that
they are compared with.

Examples
  trimtab bench experts
  trimtab bench experts --shape deepseek-v3,1536x2048 --dtype f32,bf16 --m 1,8,64
  trimtab bench experts --layer --shape olmoe --tokens 1,256 --threads 2 --json
)";

// Turns an error of `parse` into one of usage.
template <class Parse>
CLI::Validator parses(const Parse& parse) {
  return {[parse](const std::string& text) -> std::string {
            try {
              parse(text);
              return "";
            } catch (const InvalidArgument& error) {
              return error.what();
            }
          },
          ""};
}

// A stage needs a number of experts. Known only once all options are read, so it is no validator.
void check_models(const std::vector<std::string>& shapes) {
  for (const std::string& shape : shapes) {
    try {
      bench::parse_model(shape);
    } catch (const InvalidArgument& error) {
      throw CLI::ValidationError("--shape", error.what());
    }
  }
}

template <class Values>
CLI::Option* add_list(CLI::App& command, const char* name, Values& values, const char* about) {
  return command.add_option(name, values, about)->delimiter(',')->capture_default_str();
}

void add_effort(CLI::App& command, BenchOptions& options) {
  command
      .add_option("--threads", options.threads,
                  "Threads that compute, and whose ceilings are measured")
      ->check(one_to(1024))
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--cold-mb", options.cold_mb,
                  "Megabytes of weights to cycle through, and of memory to stream; at most half of "
                  "what is free")
      ->check(one_to(kMostMegabytes))
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--json", options.json, "One JSON object on standard output instead of text");
}

void add_experts(CLI::App& bench, BenchOptions& options) {
  CLI::App* experts =
      bench.add_subcommand("experts", "Measure the expert kernels against this machine's limits");
  CLI::Option* layer = experts->add_flag("--layer", options.layer,
                                         "The whole experts stage instead of single products");
  add_list(*experts, "--shape", options.shapes,
           "Models (mixtral, qwen3-30b, olmoe, deepseek-v3, gpt-oss-20b), or NxK")
      ->check(parses(bench::parse_shape))
      ->type_name("NAME|NxK,...");
  add_list(*experts, "--dtype", options.dtypes, "Of the weights: f32, bf16")
      ->check(parses(bench::find_weight_dtype))
      ->type_name("NAME,...");
  add_list(*experts, "--m", options.m, "Rows of one expert")
      ->check(one_to(kMostRows))
      ->type_name("N,...")
      ->excludes(layer);
  add_list(*experts, "--tokens", options.tokens, "Tokens of the whole stage")
      ->check(one_to(kMostRows))
      ->type_name("N,...")
      ->needs(layer);
  add_list(*experts, "--routing", options.routings, "How tokens choose experts: natural, skewed")
      ->check(parses(bench::find_routing))
      ->type_name("NAME,...")
      ->needs(layer);
  experts->add_option("--seconds", options.seconds, "For each row of the result, at least 7 pairs")
      ->check(CLI::Range(0.0, 3600.0).description(""))
      ->type_name("S")
      ->capture_default_str();
  add_effort(*experts, options);
  experts->footer(kExpertsFooter);
  experts->callback([&options] {
    if (options.layer) check_models(options.shapes);
    bench_experts(options);
  });
}

}  // namespace

void add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measure kernels against the limits of this machine");
  CLI::Option* isa =
      bench->add_flag("--isa", options.isa, "List and time the instruction sets of this CPU");
  add_effort(*bench, options);
  bench->require_subcommand(0, 1);
  bench->footer(kBenchFooter);
  add_experts(*bench, options);
  add_bench_dispatch(*bench, options.dispatch);
  bench->callback([&options, bench, isa] {
    if (!bench->get_subcommands().empty()) return;
    if (isa->count() == 0) throw CLI::RequiredError("--isa, experts or dispatch");
    bench_isa(options);
  });
}

}  // namespace trimtab::cli
