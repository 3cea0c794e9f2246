// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/experts/paired.h"
#include "bench/experts/routing.h"
#include "bench/machine/stopwatch.h"
#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "trimtab/cost_file.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/policy.h"
#include "trimtab/recordings.h"
#include "trimtab/split.h"
#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

constexpr SplitRule kRules[] = {SplitRule::kStatic, SplitRule::kRoundRobin, SplitRule::kSplit,
                                SplitRule::kTime};

struct NamedCost {
  std::string name;
  CostModel cost;
};

std::vector<NamedCost> costs_of(const BenchSplitOptions& options) {
  if (options.cost.empty()) {
    // A thousandth of a row's time is left, so that nobody gets rows without need.
    return {{"weights alone", CostModel({{.rows = 1, .picoseconds = 1'000'000'000},
                                         {.rows = 2, .picoseconds = 1'000'001'000}})}};
  }
  std::vector<NamedCost> costs;
  for (const MeasuredCost& c : read_costs(options.cost)) {
    costs.push_back({fmt::format("{} {} {} on {} thread{}", c.shape, c.weights, c.isa, c.threads,
                                 c.threads == 1 ? "" : "s"),
                     c.cost});
  }
  return costs;
}

// The picks of some steps: of each layer and step [ranks, experts].
struct Steps {
  int experts = 0, layers = 0;
  std::vector<std::vector<std::vector<int32_t>>> counts;  // [layers][steps][ranks, experts]
};

Steps random_steps(const BenchSplitOptions& options, int64_t tokens) {
  Steps steps{.experts = options.experts, .layers = 1, .counts = {{}}};
  const bench::RoutingKind routing = bench::find_routing(options.routing);
  for (int step = 0; step < options.steps; ++step) {
    std::vector<int32_t> counts;
    for (int rank = 0; rank < options.ranks; ++rank) {
      const auto seed = static_cast<uint64_t>(step) * static_cast<uint64_t>(options.ranks) +
                        static_cast<uint64_t>(rank);
      const bench::Picks picks =
          bench::route(routing, tokens, options.experts, options.top_k, seed);
      const std::vector<int32_t> row = bench::counts_of(picks.ids, options.experts);
      counts.insert(counts.end(), row.begin(), row.end());
    }
    steps.counts[0].push_back(std::move(counts));
  }
  return steps;
}

// The picks of a step come from all ranks equally, the odd ones in turn.
std::vector<int32_t> from_all_ranks(std::span<const int64_t> load, int64_t ranks) {
  std::vector<int32_t> counts(cells(ranks, std::ssize(load)));
  const Table<int32_t> table(counts.data(), ranks, std::ssize(load));
  int64_t turn = 0;
  for (int64_t e = 0; e < std::ssize(load); ++e) {
    for (int64_t r = 0; r < ranks; ++r) table(r, e) = static_cast<int32_t>(load[cells(e)] / ranks);
    for (int64_t rest = load[cells(e)] % ranks; rest > 0; --rest) ++table(turn++ % ranks, e);
  }
  return counts;
}

Steps recorded_steps(const BenchSplitOptions& options, int64_t tokens) {
  RecordingOptions how;
  if (detect_format(options.loads).format == FileFormat::kTopK)
    how.tokens_per_step = tokens * options.ranks;
  const Load load = read_recording(options.loads, how).load;
  if (load.num_steps < 2)
    throw InvalidArgument(fmt::format("{} has {} steps of {} tokens, 2 are needed", options.loads,
                                      load.num_steps, tokens * options.ranks));
  Steps steps{.experts = load.num_experts, .layers = load.num_layers, .counts = {}};
  for (int layer = 0; layer < load.num_layers; ++layer) {
    steps.counts.emplace_back();
    for (int64_t step = 0; step < load.num_steps; ++step)
      steps.counts.back().push_back(from_all_ranks(load.at(step, layer), options.ranks));
  }
  return steps;
}

// Planned on the first half of the steps, all layers.
Placement plan(const BenchSplitOptions& options, const Steps& steps) {
  Load load{.num_steps = std::ssize(steps.counts[0]) / 2,
            .num_layers = steps.layers,
            .num_experts = steps.experts,
            .counts = {}};
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int layer = 0; layer < steps.layers; ++layer) {
      std::vector<int64_t> sums(cells(steps.experts));
      const std::vector<int32_t>& counts = steps.counts[cells(layer)][cells(step)];
      for (size_t i = 0; i < counts.size(); ++i) sums[i % sums.size()] += counts[i];
      load.counts.insert(load.counts.end(), sums.begin(), sums.end());
    }
  }
  const Placement first = default_placement(steps.layers, steps.experts,
                                            std::vector<int>(cells(options.ranks), options.slots));
  return make_policy("trim")->rebalance({.load = load, .current = first}).placement;
}

// The least that the busiest rank can have of units that each belong to one expert and may go to
// any of its replicas: the rule `split` finds it exactly.
int64_t least_peak(const SplitTable& table, std::span<const int64_t> units, Workspace& workspace) {
  std::vector<int32_t> counts(cells(table.num_ranks, table.num_experts));
  for (size_t e = 0; e < units.size(); ++e) counts[e] = static_cast<int32_t>(units[e]);
  std::vector<int32_t> shares(cells(table.num_ranks, table.num_slots));
  split_tokens(SplitRule::kSplit, table, counts, workspace, shares);
  std::vector<int64_t> loads(cells(table.num_ranks));
  split_rank_loads(table, shares, loads);
  return *std::ranges::max_element(loads);
}

struct Bounds {
  double reads = 0, seconds = 0;
};

struct RuleFigures {
  double reads = 0, par_rows = 0, par_time = 0, seconds = 0, replicas_used = 0;
  double microseconds = 0;  // median
};

struct SplitRow {
  std::string cost;
  int64_t tokens;
  Bounds bounds;
  RuleFigures rules[std::size(kRules)];
};

// Fills the caches as the rest of a step does.
void sweep_caches() {
  static std::vector<uint64_t> memory(size_t{32} << 17);  // 32 MiB
  for (size_t i = 0; i < memory.size(); i += 8) ++memory[i];
}

// One layer's steps, all of which were planned for or none.
class LayerSplits {
 public:
  LayerSplits(const Placement& placement, int layer, const CostModel& cost)
      : table_(placement, layer),
        cost_(cost),
        workspace_(split_workspace_bytes(table_)),
        shares_(cells(table_.num_ranks, table_.num_slots)),
        loads_(cells(table_.num_ranks)) {}

  void add(const std::vector<int32_t>& counts, SplitRow& row,
           std::vector<double> (&times)[std::size(kRules)]) {
    std::vector<int64_t> totals(cells(table_.num_experts));
    for (size_t i = 0; i < counts.size(); ++i) totals[i % totals.size()] += counts[i];
    add_bounds(totals, row.bounds);
    for (size_t i = 0; i < std::size(kRules); ++i) {
      sweep_caches();
      const bench::Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
      split_tokens(kRules[i], table_, counts, workspace_, shares_, &cost_);
      times[i].push_back(1e6 * watch.seconds());
      add_figures(totals, row.rules[i]);
    }
  }

 private:
  void add_bounds(std::span<const int64_t> totals, Bounds& bounds) {
    std::vector<int64_t> units(totals.size());
    std::ranges::transform(totals, units.begin(), [](int64_t n) { return n > 0 ? 1 : 0; });
    bounds.reads += static_cast<double>(least_peak(table_, units, workspace_));
    std::ranges::transform(totals, units.begin(), [&](int64_t n) { return cost_.time(n); });
    const int64_t sum = std::accumulate(units.begin(), units.end(), int64_t{0});
    const int64_t scale = sum / 1'000'000'000 + 1;
    for (int64_t& unit : units) unit /= scale;
    bounds.seconds += 1e-12 * static_cast<double>(least_peak(table_, units, workspace_) * scale);
  }

  void add_figures(std::span<const int64_t> totals, RuleFigures& figures) {
    split_rank_loads(table_, shares_, loads_);
    figures.par_rows += par(loads_);
    split_rank_times(table_, shares_, cost_, loads_);
    figures.par_time += par(loads_);
    figures.seconds += 1e-12 * static_cast<double>(*std::ranges::max_element(loads_));
    std::ranges::fill(loads_, 0);
    int64_t used = 0;
    for (int slot = 0; slot < table_.num_slots; ++slot) {
      int64_t rows = 0;
      for (int r = 0; r < table_.num_ranks; ++r)
        rows += shares_[cells(r * table_.num_slots + slot)];
      if (rows == 0) continue;
      ++used;
      ++loads_[cells(table_.rank_of_slot[cells(slot)])];
    }
    figures.reads += static_cast<double>(*std::ranges::max_element(loads_));
    // Replicas that could have tokens, beyond the one that each expert with tokens needs.
    int64_t needed = 0, usable = 0;
    for (int e = 0; e < table_.num_experts; ++e) {
      const int64_t copies = table_.first_replica[cells(e) + 1] - table_.first_replica[cells(e)];
      if (totals[cells(e)] == 0) continue;
      ++needed;
      usable += std::min(copies, totals[cells(e)]);
    }
    if (usable > needed)
      figures.replicas_used +=
          static_cast<double>(used - needed) / static_cast<double>(usable - needed);
  }

  const SplitTable table_;
  const CostModel& cost_;
  Workspace workspace_;
  std::vector<int32_t> shares_;
  std::vector<int64_t> loads_;
};

SplitRow measure(const Steps& steps, const Placement& placement, const NamedCost& cost,
                 int64_t tokens) {
  SplitRow row{.cost = cost.name, .tokens = tokens, .bounds = {}, .rules = {}};
  std::vector<double> times[std::size(kRules)];
  int64_t batches = 0;
  for (int layer = 0; layer < steps.layers; ++layer) {
    LayerSplits splits(placement, layer, cost.cost);
    const auto& counts = steps.counts[cells(layer)];
    for (size_t step = counts.size() / 2; step < counts.size(); ++step, ++batches)
      splits.add(counts[step], row, times);
  }
  const auto count = static_cast<double>(batches);
  row.bounds.reads /= count;
  row.bounds.seconds /= count;
  for (size_t i = 0; i < std::size(kRules); ++i) {
    RuleFigures& f = row.rules[i];
    for (double* figure : {&f.reads, &f.par_rows, &f.par_time, &f.seconds, &f.replicas_used})
      *figure /= count;
    f.microseconds = bench::spread_of(std::move(times[i])).median;
  }
  return row;
}

std::string text_report(const BenchSplitOptions& options, const std::vector<SplitRow>& rows) {
  std::string out = fmt::format("{} ranks x {} slots, {}\n", options.ranks, options.slots,
                                options.loads.empty()
                                    ? fmt::format("{} experts, top {}, {} routing", options.experts,
                                                  options.top_k, options.routing)
                                    : options.loads);
  auto to = std::back_inserter(out);
  const std::string* cost = nullptr;
  for (const SplitRow& row : rows) {
    if (cost == nullptr || *cost != row.cost) {
      fmt::format_to(
          to, "\n{}\ntokens  rule         reads  PAR rows  PAR time        ms  replicas      us\n",
          row.cost);
      cost = &row.cost;
    }
    for (size_t i = 0; i < std::size(kRules); ++i) {
      const RuleFigures& f = row.rules[i];
      fmt::format_to(to, "{:6}  {:11} {:6.2f} {:9.3f} {:9.3f} {:9.4f} {:9.2f} {:7.1f}\n",
                     row.tokens, name(kRules[i]), f.reads, f.par_rows, f.par_time, 1e3 * f.seconds,
                     f.replicas_used, f.microseconds);
    }
    fmt::format_to(to, "{:6}  {:11} {:6.2f} {:9} {:9} {:9.4f}\n", row.tokens, "(bound)",
                   row.bounds.reads, "", "", 1e3 * row.bounds.seconds);
  }
  return out;
}

std::string json_report(const std::vector<SplitRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SplitRow& row : rows) {
    for (size_t i = 0; i < std::size(kRules); ++i) {
      const RuleFigures& f = row.rules[i];
      list.push_back({{"cost", row.cost},
                      {"tokens", row.tokens},
                      {"rule", name(kRules[i])},
                      {"reads", f.reads},
                      {"par_rows", f.par_rows},
                      {"par_time", f.par_time},
                      {"ms", 1e3 * f.seconds},
                      {"us", f.microseconds},
                      {"reads_bound", row.bounds.reads},
                      {"ms_bound", 1e3 * row.bounds.seconds},
                      {"replicas_used", f.replicas_used}});
    }
  }
  return nlohmann::ordered_json{{"rows", list}}.dump() + "\n";
}

}  // namespace

void bench_split(const BenchSplitOptions& options) {
  const std::vector<NamedCost> costs = costs_of(options);
  LinePrinter printer;
  std::vector<SplitRow> rows;
  for (const int64_t tokens : options.tokens) {
    printer.status(fmt::format("{} tokens a rank", tokens));
    const Steps steps =
        options.loads.empty() ? random_steps(options, tokens) : recorded_steps(options, tokens);
    const Placement placement = plan(options, steps);
    for (const NamedCost& cost : costs) rows.push_back(measure(steps, placement, cost, tokens));
  }
  std::ranges::stable_sort(rows, {}, [&](const SplitRow& row) {
    return std::ranges::find(costs, row.cost, &NamedCost::name) - costs.begin();
  });
  printer.finish("measured");
  print_report(options.json ? json_report(rows) : text_report(options, rows));
}

}  // namespace trimtab::cli
