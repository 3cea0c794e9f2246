// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_options.h"

#include <string>
#include <vector>

#include "bench/experts/gemm_bench.h"
#include "bench/experts/layer_bench.h"
#include "bench/experts/weight_dtype.h"
#include "cli/bench/bench.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

constexpr int kMostRows = 1 << 16;
constexpr int kMostMegabytes = 1 << 20;

constexpr const char* kBenchFooter = R"(
trimtab bench --isa lists the instruction sets of this CPU and measures what each can reach:
multiplications and additions per second of f32, bf16 and int8 dot products, and bytes per second
from cold memory.
trimtab bench experts compares the expert kernels with that; see trimtab bench experts --help.
trimtab bench dispatch times bringing tokens to their experts and back; see
trimtab bench dispatch --help.
trimtab bench split compares the rules that share picks out over replicas; see
trimtab bench split --help.
trimtab bench model times a whole model, or measures its perplexity; see trimtab bench model --help.
trimtab bench machine says what the machine is made of and what its memory gives; trimtab bench
sockets times experts on one memory node and on all.
)";

constexpr const char* kExpertsFooter = R"(
What it does. Packs as many experts with random weights as it takes to find none in a cache, checks
results against a reference in double, then times: before every call it measures the peak and the
stream of this machine, so that a busy neighbour slows both sides alike. What it prints are medians
of these pairs and the quartiles.

One expert's products (gate_up with its activation, down) at each --m rows; or with --layer the
whole stage at each --tokens: rows sorted by expert, products, weighted sum, for experts that are
equally popular (natural) and for experts of which the n-th is picked in proportion to 1/n (skewed).

--json: {isa, threads, ceilings: [...], rows: [...]}; rows have shape, gemm, dtype, isa, m, threads,
ms, gflops, pct_stream, pct_peak, pct_roof, or with --layer model, dtype, isa, routing, tokens,
threads, active_experts, ms, gflops, pct_stream, pct_peak, pct_roof, pct_moving.

Exit status: 0 done, 1 a result was wrong or it failed, 2 wrong usage. TRIMTAB_ISA chooses kernels
and the peak that they are compared with.

Examples
  trimtab bench experts
  trimtab bench experts --shape deepseek-v3,1536x2048 --dtype f32,bf16 --m 1,8,64
  trimtab bench experts --layer --shape olmoe --tokens 1,256 --threads 2 --json
  trimtab bench experts --dtype bf16,w8a8 --m 1,4,8,16,32,64,256 --cost-out costs.json
)";

// A stage needs a number of experts, which not every shape has.
void check_models(const std::vector<std::string>& shapes) {
  for (const std::string& shape : shapes) {
    try {
      bench::parse_model(shape);
    } catch (const InvalidArgument& error) {
      throw UsageError(std::string("--shape: ") + error.what());
    }
  }
}

std::string weight_formats() {
  std::string names;
  for (const bench::WeightDType& dtype : bench::weight_dtypes()) {
    names += names.empty() ? "" : ", ";
    names += dtype.name;
  }
  return names;
}

void add_effort(Command& command, BenchOptions& options) {
  command
      .number("--threads", options.threads, "Threads that compute, and whose ceilings are measured")
      .between(1, 1024)
      .shows_default();
  add_cold_memory(command, options.cold_mb);
  command.flag("--json", options.json, "One JSON object on standard output instead of text");
}

void add_experts(Command& bench, BenchOptions& options) {
  Command experts =
      bench.add("experts", "Measure the expert kernels against this machine's limits");
  const Option layer =
      experts.flag("--layer", options.layer, "The whole experts stage instead of single products");
  experts
      .list("--shape", options.shapes,
            "Models (mixtral, qwen3-30b, olmoe, deepseek-v3, gpt-oss-20b), or NxK")
      .parsed_by([](const std::string& text) { bench::parse_shape(text); })
      .type("NAME|NxK,...")
      .shows_default();
  experts.list("--dtype", options.dtypes, "Formats of the weights: " + weight_formats())
      .parsed_by([](const std::string& text) { bench::find_weight_dtype(text); })
      .type("NAME,...")
      .shows_default();
  experts.list("--m", options.m, "Rows of one expert")
      .between(1, kMostRows)
      .type("N,...")
      .shows_default()
      .excludes(layer);
  experts.list("--tokens", options.tokens, "Tokens of the whole stage")
      .between(1, kMostRows)
      .type("N,...")
      .shows_default()
      .needs(layer);
  experts.list("--routing", options.routings, "How tokens choose experts: natural, uneven, skewed")
      .parsed_by([](const std::string& text) { bench::find_routing(text); })
      .type("NAME,...")
      .shows_default()
      .needs(layer);
  experts.number("--seconds", options.seconds, "For each row of the result, at least 7 pairs")
      .between_reals(0.0, 3600.0)
      .type("S")
      .shows_default();
  experts
      .text(
          "--cost-out", options.cost_out,
          "Write what an expert takes for each of --m rows, for run --cost and bench split --cost")
      .type("FILE")
      .excludes(layer);
  add_effort(experts, options);
  experts.footer(kExpertsFooter);
  experts.runs([&options] {
    if (options.layer || !options.cost_out.empty()) check_models(options.shapes);
    bench_experts(options);
  });
}

}  // namespace

void add_cold_memory(Command& command, int& megabytes) {
  command
      .number("--cold-mb", megabytes,
              "Megabytes of weights to cycle through, and of memory to stream; at most half of "
              "what is free")
      .between(1, kMostMegabytes)
      .shows_default();
}

Command add_bench(Command& program, BenchOptions& options) {
  Command bench = program.add("bench", "Measure kernels against the limits of this machine");
  bench.flag("--isa", options.isa, "List and time the instruction sets of this CPU");
  add_effort(bench, options);
  bench.footer(kBenchFooter);
  add_experts(bench, options);
  bench.runs([&options] {
    if (!options.isa)
      throw UsageError("--isa, experts, dispatch, split, model, machine or sockets is required");
    bench_isa(options);
  });
  return bench;
}

}  // namespace trimtab::cli
