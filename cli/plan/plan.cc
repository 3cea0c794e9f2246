// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/serving_keys.h"

namespace trimtab::cli {

namespace {

double moves_per_layer(const Plan& plan) {
  return static_cast<double>(plan.moves.size()) / static_cast<double>(plan.layers.size());
}

// The most expert weights that one rank gets in one layer.
int64_t receive_peak(const Plan& plan) {
  return *std::ranges::max_element(plan.receive_peak);
}

std::string json_report(const PlanOptions& options, const PlanResult& result) {
  const Plan& plan = result.plan;
  nlohmann::ordered_json report = {
      {"policy", options.policy},
      {"layers", plan.layers.size()},
      {"par_before", plan.mean(&LayerPrediction::par_before)},
      {"par_after", plan.mean(&LayerPrediction::par_after)},
      {"par_step_before", plan.mean(&LayerPrediction::par_step_before)},
      {"par_step_after", plan.mean(&LayerPrediction::par_step_after)},
      {"par_step_after_high", plan.mean(&LayerPrediction::par_step_after_high)},
      {"lower_bound", plan.mean(&LayerPrediction::bound_equal)},
      {"lower_bound_split", plan.mean(&LayerPrediction::bound_exact)},
      {"moves_per_layer", moves_per_layer(plan)},
      {"moves", plan.moves.size()},
      {"receive_peak", receive_peak(plan)},
      {"duplicates", std::accumulate(plan.duplicates.begin(), plan.duplicates.end(), int64_t{0})},
      {"plan_seconds", result.seconds}};
  add_serving_keys(options.serving, result.served, report);
  if (result.served.cost) {
    report["par_time_before"] = plan.mean(&LayerPrediction::par_time_before);
    report["par_time_after"] = plan.mean(&LayerPrediction::par_time_after);
    report["step_seconds_before"] = plan.mean(&LayerPrediction::step_seconds_before);
    report["step_seconds_after"] = plan.mean(&LayerPrediction::step_seconds_after);
  }
  if (options.curve) {
    nlohmann::ordered_json curve = nlohmann::ordered_json::array();
    for (const CurvePoint& point : plan.curve) {
      nlohmann::ordered_json one = {{"moves", point.moves}};
      if (options.expert_bytes > 0) one["bytes"] = point.moves * options.expert_bytes;
      one["par"] = point.par;
      one["par_step"] = point.par_step;
      if (result.served.cost) one["step_seconds"] = point.step_seconds;
      curve.push_back(std::move(one));
    }
    report["curve"] = std::move(curve);
  }
  if (result.has_wires) {
    if (result.has_prices) {
      report["copies_cost_before"] = plan.mean(&LayerPrediction::copies_cost_before);
      report["copies_cost_after"] = plan.mean(&LayerPrediction::copies_cost_after);
    }
    report["node_copies_before"] = plan.mean(&LayerPrediction::node_copies_before);
    report["node_copies_after"] = plan.mean(&LayerPrediction::node_copies_after);
  }
  if (result.traffic) report["traffic"] = traffic_json(*result.traffic);
  return report.dump(1) + "\n";
}

void append_curve(std::string& to, const PlanOptions& options, const PlanResult& result) {
  const Plan& plan = result.plan;
  std::vector<CurvePoint> points = plan.curve;
  const CurvePoint taken{.moves = std::ssize(plan.moves),
                         .par = plan.mean(&LayerPrediction::par_after),
                         .par_step = plan.mean(&LayerPrediction::par_step_after),
                         .step_seconds = plan.mean(&LayerPrediction::step_seconds_after)};
  const auto next = std::ranges::upper_bound(points, taken.moves, {}, &CurvePoint::moves);
  const auto place = next - points.begin();
  points.insert(next, taken);
  const bool bytes = options.expert_bytes > 0;
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "\nPAR against moves, over all layers\n{:>8}{}{:>12}{:>12}\n", "moves",
                 bytes ? fmt::format("{:>18}", "bytes") : "", "of a step", "of window");
  for (auto i = points.begin(); i != points.end(); ++i) {
    fmt::format_to(out, "{:8}{}{:12.4f}{:12.4f}{}\n", i->moves,
                   bytes ? fmt::format("{:18}", i->moves * options.expert_bytes) : "", i->par_step,
                   i->par, i - points.begin() == place ? "  this plan" : "");
  }
}

void append_layers(std::string& to, const PlanResult& result) {
  const Plan& plan = result.plan;
  std::vector<int64_t> moves(plan.layers.size());
  for (const Move& move : plan.moves) ++moves[move.layer];
  to += "        PAR of the window             mean PAR of a step\n";
  to +=
      "layer   before   after   bound   before   after up to    moves  most into a rank  "
      "duplicates\n";
  const auto out = std::back_inserter(to);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerPrediction& layer = plan.layers[l];
    fmt::format_to(out, "{:5} {:8.4f} {:7.4f} {:7.4f} {:8.4f} {:7.4f} {:7.4f} {:6} {:17} {:11}\n",
                   result.layer_ids[l], layer.par_before, layer.par_after, layer.bound_equal,
                   layer.par_step_before, layer.par_step_after, layer.par_step_after_high, moves[l],
                   plan.receive_peak[l], plan.duplicates[l]);
  }
  fmt::format_to(out, " mean {:8.4f} {:7.4f} {:7.4f} {:8.4f} {:7.4f} {:7.4f} {:6.1f}\n",
                 plan.mean(&LayerPrediction::par_before), plan.mean(&LayerPrediction::par_after),
                 plan.mean(&LayerPrediction::bound_equal),
                 plan.mean(&LayerPrediction::par_step_before),
                 plan.mean(&LayerPrediction::par_step_after),
                 plan.mean(&LayerPrediction::par_step_after_high), moves_per_layer(plan));
}

void append_times(std::string& to, const PlanResult& result) {
  const Plan& plan = result.plan;
  to += "\n        PAR of a step in time    busiest rank, microseconds\n";
  to += "layer   before   after            before       after\n";
  const auto out = std::back_inserter(to);
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerPrediction& layer = plan.layers[l];
    fmt::format_to(out, "{:5} {:8.4f} {:7.4f} {:17.3f} {:11.3f}\n", result.layer_ids[l],
                   layer.par_time_before, layer.par_time_after, 1e6 * layer.step_seconds_before,
                   1e6 * layer.step_seconds_after);
  }
}

std::string text_report(const PlanOptions& options, const Recording& loads,
                        const PlanResult& result) {
  const Placement& placement = result.plan.placement;
  std::string report = fmt::format(
      "{}: {} steps, {} layers of {} experts; {} slots on {} ranks; policy {}\n\n",
      printable(valid_utf8(loads.file)), loads.load.num_steps, loads.load.num_layers,
      loads.load.num_experts, placement.num_slots(), placement.num_ranks(), options.policy);
  append_layers(report, result);
  if (result.served.cost) append_times(report, result);
  if (options.curve) append_curve(report, options, result);
  report += result.traffic ? traffic_text(*result.traffic) : no_traffic_text(options.wires, &loads);
  const auto out = std::back_inserter(report);
  fmt::format_to(out, "\n{} expert weights move", result.plan.moves.size());
  if (options.expert_bytes > 0) fmt::format_to(out, " ({} bytes)", result.plan.bytes);
  fmt::format_to(out, "; planned in {:.3f} s.\n", result.seconds);
  if (!options.out.empty()) {
    fmt::format_to(out, "The placement is in {} ({}).\n", printable(valid_utf8(options.out)),
                   options.format);
  }
  report += fmt::format("\nPAR: peak-to-average rank load; 1 is level. {}\n",
                        serving_text(options.serving, result.served));
  report +=
      "Bound: proved, no placement with these slots in which no rank holds an expert twice has a "
      "lower PAR\n"
      "of the window. Up to: upper end of the 95 % interval of the mean PAR of a step.\n";
  return report;
}

}  // namespace

void plan(const PlanOptions& options) {
  const std::unique_ptr<Policy> policy = make_policy(options.policy, options.policy_options);
  check_writable("-o", options.out);
  check_writable("--report", options.report);
  LinePrinter printer;
  Recording loads = read_loads(options.loads);
  PlacementFile current = starting_placement(options, loads);
  ServedBy served = read_serving(options.serving);
  const TokenSample* tokens = tokens_of(loads, current.placement.num_ranks());
  Problem problem = problem_of(options, loads.load, current.placement, served, tokens);
  problem.wants_curve = options.curve;

  printer.status(fmt::format("planning {} layers with {}", loads.load.num_layers, options.policy));
  const auto start = std::chrono::steady_clock::now();
  Plan plan = policy->rebalance(problem);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printer.finish(fmt::format("planned in {:.3f} s", seconds));

  if (!options.out.empty()) {
    current.metadata["policy"] = options.policy;
    write_placement(options.out, {plan.placement, current.layer_ids, current.metadata},
                    file_format(options.format));
  }
  PlanResult result{std::move(plan),   current.layer_ids,   seconds,
                    std::move(served), problem.has_wires(), problem.topology.has_prices()};
  result.traffic = step_traffic(loads, tokens, options.wires, problem.topology,
                                {{"before", current.placement}, {"after", result.plan.placement}});
  if (!options.report.empty()) {
    write_report(options.report, plan_page(options, loads, current.placement, result));
  }
  print_report(options.json ? json_report(options, result) : text_report(options, loads, result));
}

}  // namespace trimtab::cli
