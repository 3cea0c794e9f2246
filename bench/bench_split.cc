// SPDX-License-Identifier: Apache-2.0
// What it costs to share one layer's picks out over the replicas of their experts, and how level it
// makes a batch: the microseconds of split_tokens() on one core, with caches that the rest of a
// step has filled with other things, and the PAR of the batch. See docs/performance.md.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <vector>

#include "bench/experts/paired.h"
#include "bench/experts/routing.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"
#include "trimtab/load.h"
#include "trimtab/par.h"
#include "trimtab/policy.h"
#include "trimtab/split.h"
#include "trimtab/table.h"

namespace {

using namespace trimtab;

struct Options {
  int ranks = 64;
  int experts = 256;
  int redundant = 1;  // slots more on each rank
  int top_k = 8;
  int batches = 64;
  std::vector<int> tokens = {16, 64, 256};  // of each rank
};

constexpr struct {
  const char* name;
  SplitRule rule;
} kRules[] = {{"static", SplitRule::kStatic},
              {"round_robin", SplitRule::kRoundRobin},
              {"split", SplitRule::kSplit},
              {"time", SplitRule::kTime}};

// An expert's weights cost as much as 14 rows, and the rows are hidden behind them at first.
const CostModel kCost({{1, 300'000'000}, {8, 310'000'000}, {16, 400'000'000}, {64, 1'300'000'000}});

// [ranks, experts]
std::vector<int32_t> counts_of_batch(const Options& options, bench::RoutingKind routing, int tokens,
                                     uint64_t seed) {
  std::vector<int32_t> counts;
  for (int r = 0; r < options.ranks; ++r) {
    const uint64_t of_rank = seed * static_cast<uint64_t>(options.ranks) + static_cast<uint64_t>(r);
    const bench::Picks picks =
        bench::route(routing, tokens, options.experts, options.top_k, of_rank);
    const std::vector<int32_t> row = bench::counts_of(picks.ids, options.experts);
    counts.insert(counts.end(), row.begin(), row.end());
  }
  return counts;
}

// Planned on the first half of the batches.
Placement plan(const Options& options, const std::vector<std::vector<int32_t>>& batches) {
  Load load{.num_steps = std::ssize(batches) / 2,
            .num_layers = 1,
            .num_experts = options.experts,
            .counts = {}};
  for (int64_t b = 0; b < load.num_steps; ++b) {
    std::vector<int64_t> sums(options.experts);
    const std::vector<int32_t>& counts = batches[b];
    for (size_t i = 0; i < counts.size(); ++i) sums[i % sums.size()] += counts[i];
    load.counts.insert(load.counts.end(), sums.begin(), sums.end());
  }
  const int slots = (options.experts + options.ranks - 1) / options.ranks + options.redundant;
  const Placement first =
      default_placement(1, options.experts, std::vector<int>(options.ranks, slots));
  return make_policy("trim")->rebalance({.load = load, .current = first}).placement;
}

// Fills the caches as the rest of a step does.
void sweep_caches() {
  static std::vector<uint64_t> memory(size_t{64} << 17);  // 64 MiB
  for (size_t i = 0; i < memory.size(); i += 8) ++memory[i];
}

struct Figures {
  bench::Spread cold, warm;  // microseconds
  double par = 0;            // mean over the batches
  double peak = 0;           // milliseconds of the busiest rank by kCost, mean over the batches
};

Figures measure(SplitRule rule, const SplitTable& table,
                const std::vector<std::vector<int32_t>>& batches) {
  Workspace workspace(split_workspace_bytes(table));
  std::vector<int32_t> shares(cells(table.num_ranks, table.num_slots));
  std::vector<int64_t> loads(table.num_ranks);
  std::vector<double> cold, warm;
  Figures figures;
  const size_t first = batches.size() / 2;
  for (size_t b = first; b < batches.size(); ++b) {
    sweep_caches();
    for (std::vector<double>* times : {&cold, &warm}) {
      const bench::Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
      split_tokens(rule, table, batches[b], workspace, shares, &kCost);
      times->push_back(1e6 * watch.seconds());
    }
    split_rank_loads(table, shares, loads);
    figures.par += par(loads) / static_cast<double>(batches.size() - first);
    split_rank_times(table, shares, kCost, loads);
    figures.peak += 1e-9 * static_cast<double>(*std::ranges::max_element(loads)) /
                    static_cast<double>(batches.size() - first);
  }
  figures.cold = bench::spread_of(cold);
  figures.warm = bench::spread_of(warm);
  return figures;
}

void run(const Options& options) {
  std::printf(
      "%d ranks, %d experts, top %d, %d redundant slots a rank, %d batches planned on, %d "
      "measured\n\n",
      options.ranks, options.experts, options.top_k, options.redundant, options.batches / 2,
      options.batches - options.batches / 2);
  std::printf(
      "routing  tokens a rank  rule         us cold (quartiles)  us warm (quartiles)     PAR  ms "
      "peak\n");
  for (const bench::RoutingKind routing :
       {bench::RoutingKind::kNatural, bench::RoutingKind::kSkewed}) {
    for (const int tokens : options.tokens) {
      std::vector<std::vector<int32_t>> batches;
      for (int b = 0; b < options.batches; ++b) {
        batches.push_back(counts_of_batch(options, routing, tokens, b));
      }
      const SplitTable table(plan(options, batches), 0);
      for (const auto& [name, rule] : kRules) {
        const Figures f = measure(rule, table, batches);
        std::printf("%-8s %13d  %-11s %8.1f (%5.1f-%5.1f) %8.1f (%5.1f-%5.1f) %7.3f %8.3f\n",
                    bench::routing_name(routing).data(), tokens, name, f.cold.median, f.cold.low,
                    f.cold.high, f.warm.median, f.warm.low, f.warm.high, f.par, f.peak);
        std::fflush(stdout);
      }
    }
  }
}

[[noreturn]] void usage(const char* problem) {
  std::fprintf(
      stderr,
      "%s\nusage: bench_split [--ranks N] [--experts N] [--redundant N] [--top-k N] [--batches N] "
      "[--tokens N]\n",
      problem);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view arg = argv[i];
    const std::string_view text = i + 1 < argc ? argv[i + 1] : "";
    int value = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < 0)
      usage("a number is missing");
    if (arg == "--ranks") {
      options.ranks = value;
    } else if (arg == "--experts") {
      options.experts = value;
    } else if (arg == "--redundant") {
      options.redundant = value;
    } else if (arg == "--top-k") {
      options.top_k = value;
    } else if (arg == "--batches") {
      options.batches = value;
    } else if (arg == "--tokens") {
      options.tokens = {value};
    } else {
      usage("unknown option");
    }
  }
  if (options.ranks < 1 || options.experts < 1 || options.batches < 2 ||
      options.top_k > options.experts) {
    usage("impossible sizes");
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_split: %s\n", error.what());
    return 1;
  }
  return 0;
}
