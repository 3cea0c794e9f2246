// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/check.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/plan/serving_keys.h"
#include "load/replicas.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

std::string json_report(const CheckOptions& options, const Placement& placement,
                        const CheckResult& result) {
  nlohmann::ordered_json report = {
      {"file", valid_utf8(options.placement)}, {"format", result.format},
      {"layers", placement.num_layers()},      {"experts", placement.num_experts()},
      {"ranks", placement.num_ranks()},        {"slots_per_rank", result.slots_per_rank},
      {"layer_ids", result.layer_ids},         {"duplicates_per_layer", result.duplicates}};
  if (!result.levels.empty()) {
    std::vector<double> par, mean, worst;
    for (const Levelness& level : result.levels) {
      par.push_back(level.par);
      mean.push_back(level.par_step_mean);
      worst.push_back(level.par_step_worst);
    }
    report["par_per_layer"] = par;
    report["par_step_mean_per_layer"] = mean;
    report["par_step_worst_per_layer"] = worst;
    add_serving_keys(options.serving, result.served, report);
    if (result.served.cost) {
      report["par_time_per_layer"] = result.par_time;
      report["step_seconds_per_layer"] = result.step_seconds;
    }
    if (result.traffic) report["traffic"] = traffic_json(*result.traffic);
  }
  return report.dump(1) + "\n";
}

std::string text_report(const CheckOptions& options, const Placement& placement,
                        const CheckResult& result) {
  std::string report = fmt::format(
      "{}: valid ({}); {} layers, {} experts in {} slots on {} ranks, {} duplicates on a rank\n",
      printable(valid_utf8(options.placement)), result.format, placement.num_layers(),
      placement.num_experts(), placement.num_slots(), placement.num_ranks(),
      std::accumulate(result.duplicates.begin(), result.duplicates.end(), int64_t{0}));
  if (result.levels.empty()) return report;
  const bool has_times = !result.par_time.empty();
  report += fmt::format("\nlayer     PAR  mean of a step  worst step{}\n",
                        has_times ? "  mean in time  busiest rank, microseconds" : "");
  for (size_t l = 0; l < result.levels.size(); ++l) {
    const Levelness& level = result.levels[l];
    fmt::format_to(std::back_inserter(report), "{:5} {:7.4f} {:15.4f} {:11.4f}",
                   result.layer_ids[l], level.par, level.par_step_mean, level.par_step_worst);
    if (has_times) {
      fmt::format_to(std::back_inserter(report), " {:13.4f} {:27.3f}", result.par_time[l],
                     1e6 * result.step_seconds[l]);
    }
    report += '\n';
  }
  report +=
      result.traffic ? traffic_text(*result.traffic) : no_traffic_text(options.wires, nullptr);
  return report + fmt::format("\nPAR: peak-to-average rank load; 1 is level. {}\n",
                              serving_text(options.serving, result.served));
}

}  // namespace

namespace {

// Throws InvalidArgument, naming the engine's layer, where a layer breaks a rule for nodes.
void check_rules(const CheckOptions& options, const Placement& placement,
                 const CheckResult& result) {
  const int groups = options.wires.groups, experts = placement.num_experts();
  if (experts % groups != 0)
    throw InvalidArgument(
        fmt::format("{} expert groups do not divide {} experts", groups, experts));
  const NodeRules rules = parse_node_rules(options.wires.rules);
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const std::string broken = broken_rule(rules, groups, experts, placement.logical(layer),
                                           placement.first_slots(), result.topology);
    if (broken.empty()) continue;
    throw InvalidArgument(fmt::format("{}, layer {}: {}", printable(valid_utf8(options.placement)),
                                      result.layer_ids[cells(layer)], broken));
  }
}

void measure(const Placement& placement, const Load& load, int layer, CheckResult& result) {
  const Serving serving = result.served.serving();
  result.levels.push_back(levelness(rank_loads(placement, load, layer, serving), 0));
  if (!result.served.cost) return;
  const RankLoads times = rank_times(placement, load, layer, serving);
  result.par_time.push_back(mean_of(step_pars(times, 0)));
  result.step_seconds.push_back(mean_step_peak(times, 0));
}

}  // namespace

CheckResult check_placement(const CheckOptions& options, const PlacementFile& file,
                            Recording* loads) {
  CheckResult result;
  result.format = name(file.format);
  result.served = read_serving(options.serving);
  result.layer_ids =
      loads == nullptr ? file.layer_ids : common_layer_ids(*loads, file, options.placement);
  const Placement& placement = file.placement;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    result.slots_per_rank.push_back(placement.slots_of_rank(rank));
  }
  result.topology = topology_of(options.wires, placement.num_ranks());
  check_rules(options, placement, result);
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    result.duplicates.push_back(duplicate_slots(placement.logical(layer), placement.first_slots()));
    if (loads != nullptr) measure(placement, loads->load, layer, result);
  }
  if (loads == nullptr) return result;
  result.traffic = step_traffic(*loads, tokens_of(*loads, placement.num_ranks()), options.wires,
                                result.topology, {{"", placement}});
  return result;
}

void check(const CheckOptions& options) {
  check_writable("--report", options.report);
  Recording loads;
  const bool has_loads = !options.loads.files.empty();
  if (has_loads) loads = read_loads(options.loads);
  const PlacementFile file = read_placement_for(options.placement, options.format, options.ranks,
                                                has_loads ? &loads : nullptr);
  const CheckResult result = check_placement(options, file, has_loads ? &loads : nullptr);
  if (!options.report.empty()) {
    write_report(options.report, check_page(options, file, has_loads ? &loads : nullptr, result));
  }
  print_report(options.json ? json_report(options, file.placement, result)
                            : text_report(options, file.placement, result));
}

}  // namespace trimtab::cli
