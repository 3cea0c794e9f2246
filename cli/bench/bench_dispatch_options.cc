// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_dispatch_options.h"

#include <algorithm>

#include "cli/bench/bench_dispatch.h"
#include "cli/options/dispatchers.h"
#include "cli/run/ranks.h"

namespace trimtab::cli {

namespace {

// The bench compares whole outputs.
bool is_timed(const DispatcherKind& kind) {
  return kind.output_is_reduced;
}

constexpr const char* kDispatchFooter = R"(
What it does. Every rank has --tokens tokens with --top-k different experts each, at random, and
experts that return the rows that they get. The result is checked first. Then each round times
bringing the rows to the experts, bringing f32 results back and summing them, and, on all ranks at
once, a memcpy of as many bytes as both have. Times are means over the ranks; what is printed are
medians over the rounds.

With --intermediate whole layers are timed instead: a router, bf16 experts of that size and one
thread a rank. The dispatchers have their turns in each round and are compared with the first.
--overlap also sends the tokens through in two microbatches, and says how much of the shorter of
transfer and compute that hides; the transfer is the layer with experts that do nothing.

Under mpiexec each process is a rank, on one host or several.

Dispatchers. Those below (hybrid with --hosts), and source: the pipeline of the dispatcher that
all_to_all is compared with (permute, all-to-all, permute again), step by step.
)";

constexpr const char* kDispatchFooterEnd = R"(
--json: {rows: [...]} with dispatcher, backend, ranks, hosts, tokens, hidden, top_k, experts, dtype,
ms_dispatch, ms_combine, ms_memcpy, the same as cpu_ms_..., pct_of_memcpy, quartiles of each
(ms_dispatch_quartiles and so on) and rounds. With --intermediate instead of the times:
intermediate, ms_layer, cpu_ms_layer, pct_of_first, and with --overlap ms_transfer, ms_overlapped,
pct_hidden.

Exit status: 0 done, 1 a result was wrong or it failed, 2 wrong usage.

Examples
  trimtab bench dispatch
  trimtab bench dispatch --dispatcher source,pull --tokens 512 --seconds 5 --json
  trimtab bench dispatch --dispatcher packed,hybrid,all_to_all --hosts 2
  trimtab bench dispatch --intermediate 768
)";

void add_sizes(Command& dispatch, BenchDispatchOptions& options) {
  const auto count = [&](const char* name, int& value, int most, const char* about) {
    dispatch.number(name, value, about).between(1, most).shows_default();
  };
  dispatch.list("--tokens", options.tokens, "Tokens of each rank")
      .between(1, 1 << 16)
      .type("N,...")
      .shows_default();
  dispatch.number("--ranks", options.ranks, "Ranks: threads of this process [4]").between(1, 1024);
  count("--hosts", options.hosts, 1024, "Pretend that the ranks are spread over so many hosts");
  count("--hidden", options.hidden, 1 << 20, "Elements of a row");
  count("--top-k", options.top_k, 1024, "Experts of a token");
  count("--experts", options.num_experts, 1 << 16, "Experts of all ranks");
}

void check(const BenchDispatchOptions& options) {
  if (options.top_k > options.num_experts) throw UsageError("--top-k: more picks than experts");
  if (options.overlap && options.intermediate == 0)
    throw UsageError("--overlap: is for whole layers: say --intermediate");
  if (options.intermediate > 0 && options.dtype != "bf16")
    throw UsageError("--dtype: whole layers are timed in bf16 only");
  if (options.intermediate > 0 && std::ranges::count(options.dispatchers, "source") > 0)
    throw UsageError("--dispatcher: source is no dispatcher for whole layers");
  if (options.hosts > (options.ranks > 0 ? options.ranks : kBenchRanks))
    throw UsageError("--hosts: more hosts than ranks");
}

}  // namespace

void add_bench_dispatch(Command& bench, BenchDispatchOptions& options) {
  Command dispatch = bench.add("dispatch", "Time bringing tokens to their experts and back");
  std::vector<std::string> dispatchers = dispatchers_that(is_timed);
  dispatchers.insert(dispatchers.begin(), "source");
  dispatch
      .list("--dispatcher", options.dispatchers,
            "Dispatchers to time [of whole layers: pull,fused]")
      .one_of(dispatchers)
      .type("NAME,...")
      .shows_default();
  add_sizes(dispatch, options);
  dispatch
      .text("--dtype", options.dtype,
            "Type of the rows that go to the experts: f32, bf16, int8, mxfp8")
      .one_of({"f32", "bf16", "int8", "mxfp8"})
      .type("NAME")
      .shows_default();
  dispatch
      .number("--intermediate", options.intermediate,
              "Time whole layers with bf16 experts of this size")
      .between(1, 1 << 20);
  dispatch.flag("--overlap", options.overlap, "With --intermediate: also in two microbatches");
  dispatch.flag("--progress-thread", options.progress_thread,
                "Over several hosts: a thread of each process moves messages while it computes");
  dispatch.number("--seconds", options.seconds, "For each row of the result, at least 7 rounds")
      .between_reals(0.0, 3600.0)
      .type("S")
      .shows_default();
  dispatch.flag("--json", options.json, "One JSON object on standard output instead of text");
  dispatch.footer(kDispatchFooter + lines_of_dispatchers(is_timed) + kDispatchFooterEnd);
  dispatch.runs([&options, dispatch] {
    if (options.intermediate > 0 && !dispatch.given("--dispatcher"))
      options.dispatchers = {"pull", "fused"};
    check(options);
    bench_dispatch(options);
  });
}

}  // namespace trimtab::cli
