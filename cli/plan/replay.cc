// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/replay_report.h"
#include "cli/plan/serving_keys.h"
#include "trimtab/error.h"
#include "trimtab/replay.h"

namespace trimtab::cli {

namespace {

ReplayConfig config_of(const ReplayOptions& options, const Placement& start,
                       const ServedBy& served) {
  return {.window = options.window,
          .split = served.sharing,
          .cost = served.serving().cost,
          .topology = topology_of(options.wires, start.num_ranks()),
          .limits = options.limits,
          .expert_bytes = options.expert_bytes,
          .num_groups = options.wires.groups,
          .rules = parse_node_rules(options.wires.rules)};
}

ReplayReport report_of_start(const ReplayOptions& options, const ReplayConfig& config,
                             const Recording& loads, const PlacementFile& start) {
  ReplayReport report(options, loads, start);
  for (int64_t w = 1; w <= num_replans(loads.load, config.window); ++w) {
    const Load window = steps_of(loads.load, {w * config.window, (w + 1) * config.window});
    report.add(ReplayReport::kStart, start.placement, -1,
               measure_window(start.placement, window, config));
  }
  return report;
}

using Results = std::vector<std::pair<std::string, ReplayResult>>;

std::string json_report(const ReplayOptions& options, const ServedBy& served,
                        const Results& results) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::object();
  for (const auto& [name, one] : results) {
    policies[name] = {{"par_next_mean", one.par_next_mean},
                      {"par_next_worst", one.par_next_worst},
                      {"moves_per_layer_per_replan", one.moves_per_layer_per_replan},
                      {"first_plan_moves", one.first_plan_moves},
                      {"plan_seconds_per_replan", one.plan_seconds_per_replan}};
    if (!served.cost) continue;
    policies[name]["par_time_next_mean"] = one.par_time_next_mean;
    policies[name]["step_seconds_next_mean"] = one.step_seconds_next_mean;
  }
  nlohmann::ordered_json report{{"window", options.window}, {"policies", std::move(policies)}};
  add_serving_keys(options.serving, served, report);
  return report.dump(1) + "\n";
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

void append_times(std::string& to, const Results& results) {
  to += "\npolicy       PAR of a step in time  busiest rank of a step, microseconds\n";
  for (const auto& [name, one] : results) {
    fmt::format_to(std::back_inserter(to), "{:12} {:21.4f} {:37.3f}\n", name,
                   one.par_time_next_mean, 1e6 * one.step_seconds_next_mean);
  }
}

std::string text_report(const ReplayOptions& options, bool is_default, const Recording& loads,
                        const Placement& start, const ServedBy& served, const Results& results) {
  std::string report = fmt::format(
      "{}: {} windows of {} steps{}, {} layers of {} experts; {} slots on {} ranks\n\n",
      printable(valid_utf8(loads.file)), loads.load.num_steps / options.window, options.window,
      is_default ? " (an eighth of the recording; --window takes another)" : "",
      loads.load.num_layers, loads.load.num_experts, start.num_slots(), start.num_ranks());
  report +=
      "policy       PAR of a step   worst  first moves  moves a layer, replan  seconds a replan\n";
  for (const auto& [name, one] : results) {
    fmt::format_to(std::back_inserter(report), "{:12} {:13.4f} {:7.4f} {:12} {:22.2f} {:17.4f}\n",
                   name, one.par_next_mean, one.par_next_worst, one.first_plan_moves,
                   one.moves_per_layer_per_replan, one.plan_seconds_per_replan);
  }
  if (served.cost) append_times(report, results);
  report +=
      "\nEach plan is made on one window and measured on the next; PAR is the mean over steps, "
      "windows and layers.\n"
      "First moves: of the first plan, over all layers. A replan is any later plan.\n";
  return report + serving_text(options.serving, served) + "\n";
}

}  // namespace

void replay(const ReplayOptions& given) {
  ReplayOptions options = given;
  const std::vector<std::unique_ptr<Policy>> policies =
      make_policies(options.policies, options.policy_options);
  if (!options.report.empty()) check_writable("--report", options.report);
  const Recording loads = read_loads(options.loads);
  if (options.window == 0) options.window = default_window(loads.load);
  if (loads.load.num_steps / 2 < options.window) {
    throw InvalidArgument(fmt::format(
        "{} has {} steps; --window {} needs {}, to plan on one window and measure on the next",
        loads.file, loads.load.num_steps, options.window, 2 * options.window));
  }
  const PlacementFile start = starting_placement(options, loads);
  const ServedBy served = read_serving(options.serving);
  const ReplayConfig config = config_of(options, start.placement, served);
  const int64_t plans = num_replans(loads.load, config.window);
  std::optional<ReplayReport> report;
  if (!options.report.empty()) report = report_of_start(options, config, loads, start);
  LinePrinter printer;
  Results results;
  for (size_t i = 0; i < policies.size(); ++i) {
    const std::string& name = options.policies[i];
    const auto on_plan = [&](const ReplayedPlan& one) {
      printer.status(fmt::format("{}: plan {} of {}", name, one.number + 1, plans));
      if (!report) return;
      report->add(name, one.plan.placement, std::ssize(one.plan.moves), one.next);
    };
    results.emplace_back(
        name, trimtab::replay(*policies[i], loads.load, start.placement, config, on_plan));
  }
  printer.finish(fmt::format("{} policies replayed", results.size()));
  if (report)
    write_report(options.report, report->finish(policy_table(options, loads.load, results)));
  print_report(options.json ? json_report(options, served, results)
                            : text_report(options, given.window == 0, loads, start.placement,
                                          served, results));
}

}  // namespace trimtab::cli
