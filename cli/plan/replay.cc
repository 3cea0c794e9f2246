// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/measure.h"
#include "cli/plan/replay_report.h"
#include "trimtab/error.h"
#include "trimtab/policy.h"

namespace trimtab::cli {

namespace {

// Of one policy. A replan is a plan but the first.
struct Replayed {
  double par_next_mean =
      0;  // mean PAR of a step in the window after a plan, over windows and layers
  double par_next_worst = 1;  // the worst step of those
  double moves_per_layer_per_replan = 0;
  int64_t first_plan_moves = 0;
  double plan_seconds_per_replan = 0;
};

Load window_of(const Load& load, int64_t window, int64_t number) {
  const auto size = static_cast<ptrdiff_t>(window * load.num_layers * load.num_experts);
  const auto first = load.counts.begin() + static_cast<ptrdiff_t>(number) * size;
  return {window, load.num_layers, load.num_experts, {first, first + size}};
}

WindowLevel measure_window(const ReplayOptions& options, const Topology& topology,
                           const Placement& placement, const Load& load) {
  WindowLevel window;
  for (int layer = 0; layer < load.num_layers; ++layer) {
    const LayerLevel level =
        options.split == "equal"
            ? measure(placement, load, layer)
            : measure_split(placement, load, layer, parse_split_rule(options.split),
                            topology.node_of_rank);
    window.par += level.par_step_mean / load.num_layers;
    window.worst = std::max(window.worst, level.par_step_worst);
    window.rank_load.insert(window.rank_load.end(), level.rank_load.begin(), level.rank_load.end());
  }
  return window;
}

// placement: what the first plan starts from. report: may be null.
Replayed replay_policy(const Policy& policy, const ReplayOptions& options, const Load& load,
                       Placement placement, LinePrinter& printer, ReplayReport* report) {
  const int64_t windows = load.num_steps / options.window;
  const auto plans = static_cast<double>(windows - 1),
             layers = static_cast<double>(load.num_layers);
  const double replans = std::max(plans - 1, 1.0);
  History history;
  Replayed result;
  Load now = window_of(load, options.window, 0);
  for (int64_t w = 0; w + 1 < windows; ++w) {
    if (printer.wants_status())
      printer.status(fmt::format("{}: plan {} of {}", policy.name(), w + 1, windows - 1));
    Problem problem = problem_of(options, now, placement);
    if (w > 0) problem.history = &history;
    const auto start = std::chrono::steady_clock::now();
    Plan plan = policy.rebalance(problem);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto moves = std::ssize(plan.moves);
    if (w == 0) {
      result.first_plan_moves = moves;
    } else {
      result.moves_per_layer_per_replan += static_cast<double>(moves) / layers / replans;
      result.plan_seconds_per_replan += seconds / replans;
    }
    placement = std::move(plan.placement);
    history = std::move(plan.history);
    now = window_of(load, options.window, w + 1);
    const WindowLevel level = measure_window(options, problem.topology, placement, now);
    result.par_next_mean += level.par / plans;
    result.par_next_worst = std::max(result.par_next_worst, level.worst);
    if (report != nullptr) report->add(std::string(policy.name()), placement, moves, level);
  }
  return result;
}

ReplayReport report_of_start(const ReplayOptions& options, const Recording& loads,
                             const PlacementFile& start) {
  ReplayReport report(options, loads, start);
  const Topology topology = Topology::even(start.placement.num_ranks(), options.nodes);
  for (int64_t w = 1; w < loads.load.num_steps / options.window; ++w) {
    const WindowLevel level = measure_window(options, topology, start.placement,
                                             window_of(loads.load, options.window, w));
    report.add(ReplayReport::kStart, start.placement, -1, level);
  }
  return report;
}

using Results = std::vector<std::pair<std::string, Replayed>>;

std::string json_report(const Results& results) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::object();
  for (const auto& [name, one] : results) {
    policies[name] = {{"par_next_mean", one.par_next_mean},
                      {"par_next_worst", one.par_next_worst},
                      {"moves_per_layer_per_replan", one.moves_per_layer_per_replan},
                      {"first_plan_moves", one.first_plan_moves},
                      {"plan_seconds_per_replan", one.plan_seconds_per_replan}};
  }
  return nlohmann::ordered_json{{"policies", std::move(policies)}}.dump(1) + "\n";
}

// Without the seconds: the same recording gives the same page.
ReportTable policy_table(const ReplayOptions& options, const Load& load, const Results& results) {
  ReportTable table{"Policies", "policy", {}, {}};
  table.columns = {{"par_next_mean", "PAR of a step"},
                   {"par_next_worst", "worst"},
                   {"first_plan_moves", "first moves", 0},
                   {"moves_per_layer_per_replan", "moves a layer, replan", 2}};
  if (options.expert_bytes > 0) table.columns.push_back({"", "bytes, replan", 0});
  for (const auto& [name, one] : results) {
    table.rows.push_back(
        {name,
         {one.par_next_mean, one.par_next_worst, static_cast<double>(one.first_plan_moves),
          one.moves_per_layer_per_replan}});
    if (options.expert_bytes == 0) continue;
    table.rows.back().values.push_back(one.moves_per_layer_per_replan * load.num_layers *
                                       static_cast<double>(options.expert_bytes));
  }
  return table;
}

std::string text_report(const ReplayOptions& options, const Recording& loads,
                        const Placement& start, const Results& results) {
  std::string report = fmt::format(
      "{}: {} windows of {} steps, {} layers of {} experts; {} slots on {} ranks\n\n",
      printable(valid_utf8(loads.file)), loads.load.num_steps / options.window, options.window,
      loads.load.num_layers, loads.load.num_experts, start.num_slots(), start.num_ranks());
  report +=
      "policy       PAR of a step   worst  first moves  moves a layer, replan  seconds a replan\n";
  for (const auto& [name, one] : results) {
    fmt::format_to(std::back_inserter(report), "{:12} {:13.4f} {:7.4f} {:12} {:22.2f} {:17.4f}\n",
                   name, one.par_next_mean, one.par_next_worst, one.first_plan_moves,
                   one.moves_per_layer_per_replan, one.plan_seconds_per_replan);
  }
  report +=
      "\nEach plan is made on one window and measured on the next; PAR is the mean over steps, "
      "windows and layers.\n"
      "First moves: of the first plan, over all layers. A replan is any later plan.\n";
  report += options.split == "equal"
                ? "Every expert's tokens are shared equally among its copies.\n"
                : fmt::format("A step's tokens are shared out by the rule {}.\n", options.split);
  return report;
}

}  // namespace

void replay(const ReplayOptions& options) {
  const std::vector<std::unique_ptr<Policy>> policies = make_policies(options.policies, options);
  if (!options.report.empty()) check_writable("--report", options.report);
  const Recording loads = read_loads(options.loads);
  if (loads.load.num_steps / 2 < options.window) {
    throw InvalidArgument(fmt::format(
        "{} has {} steps; --window {} needs {}, to plan on one window and measure on the next",
        loads.file, loads.load.num_steps, options.window, 2 * options.window));
  }
  const PlacementFile start = starting_placement(options, loads);
  std::optional<ReplayReport> report;
  if (!options.report.empty()) report = report_of_start(options, loads, start);
  LinePrinter printer;
  Results results;
  for (size_t i = 0; i < policies.size(); ++i) {
    results.emplace_back(options.policies[i],
                         replay_policy(*policies[i], options, loads.load, start.placement, printer,
                                       report ? &*report : nullptr));
  }
  printer.finish(fmt::format("{} policies replayed", results.size()));
  if (report)
    write_report(options.report, report->finish(policy_table(options, loads.load, results)));
  print_report(options.json ? json_report(results)
                            : text_report(options, loads, start.placement, results));
}

}  // namespace trimtab::cli
