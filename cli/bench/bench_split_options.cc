// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_split_options.h"

#include "bench/experts/routing.h"
#include "cli/bench/bench_split.h"

namespace trimtab::cli {

namespace {

constexpr const char* kSplitFooter = R"(
What it does. Plans a placement on the first half of some steps and shares the picks of each of the
other steps out over the replicas, by every rule: static, round_robin, split (the fewest rows on the
busiest rank) and time (the least time on the busiest rank, by a cost model). Without --loads every
rank has --tokens tokens in a step, whose experts are drawn at random; a step of a recording is
taken as tokens that all ranks have equally many of, and of a top-k text it is --tokens tokens a
rank.

For each rule, means over the steps: how many experts the busiest rank reads (reads), the PAR in
rows and in time, the time of the busiest rank (ms) and the processor time of sharing out, once the
caches hold other things (us). The bounds: what no rule can be below, for reads exactly, for time as
if the work of an expert could be cut anywhere.

The curve: with time, how many of the replicas beyond one that an expert could use it does use, over
the tokens of a rank. Where it leaves 0, replicas begin to pay; where it is 1, rows cost more than
weights do and every replica works.

--cost: a file that trimtab bench experts --cost-out has written; each of its costs gets a table.

--json: {rows: [{cost, tokens, rule, reads, par_rows, par_time, ms, us, reads_bound, ms_bound,
replicas_used}]}.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab bench split
  trimtab bench split --cost costs.json --ranks 32 --slots 9
  trimtab bench split --loads trace.topk.txt.xz --ranks 16 --slots 9 --tokens 8,64 --cost costs.json
)";

}  // namespace

void add_bench_split(Command& bench, BenchSplitOptions& options) {
  Command split = bench.add("split", "Compare the rules that share picks out over replicas");
  split.text("--loads", options.loads, "Take the steps of a recording").type("FILE");
  split.text("--cost", options.cost, "What experts cost [weights alone]").type("FILE");
  split.list("--tokens", options.tokens, "Tokens of each rank in a step")
      .between(1, 1 << 16)
      .type("N,...")
      .shows_default();
  split.number("--ranks", options.ranks, "Ranks").between(1, 1024).shows_default();
  split.number("--slots", options.slots, "Slots of each rank").between(1, 1024).shows_default();
  split.number("--experts", options.experts, "Experts, without --loads")
      .between(1, 1 << 14)
      .shows_default();
  split.number("--top-k", options.top_k, "Experts of a token, without --loads")
      .between(1, 1024)
      .shows_default();
  split.text("--routing", options.routing, "How tokens choose experts: natural, uneven, skewed")
      .parsed_by([](const std::string& text) { bench::find_routing(text); })
      .type("NAME")
      .shows_default();
  split.number("--steps", options.steps, "Steps, without --loads")
      .between(2, 1 << 16)
      .shows_default();
  split.flag("--json", options.json, "One JSON object on standard output instead of text");
  split.footer(kSplitFooter);
  split.runs([&options] {
    if (options.top_k > options.experts) throw UsageError("--top-k: more picks than experts");
    if (options.loads.empty() && int64_t{options.ranks} * options.slots < options.experts)
      throw UsageError("--slots: fewer slots than experts");
    bench_split(options);
  });
}

}  // namespace trimtab::cli
