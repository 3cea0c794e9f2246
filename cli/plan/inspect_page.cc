// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "cli/output/text.h"
#include "cli/plan/inspect.h"
#include "cli/plan/report_facts.h"

namespace trimtab::cli {

namespace {

template <class Value>
double mean_of_layers(const Inspection& result, Value value) {
  double sum = 0;
  for (const InspectedLayer& layer : result.layers) sum += value(layer);
  return sum / static_cast<double>(result.layers.size());
}

std::vector<ReportHeadline> headlines(const Recording& loads, const Inspection& result) {
  const InspectedLayer& worst = *std::max_element(
      result.layers.begin(), result.layers.end(),
      [](const auto& a, const auto& b) { return a.level.par_step_worst < b.level.par_step_worst; });
  std::vector<ReportHeadline> all = {
      {"PAR of a step",
       "mean over steps and layers",
       true,
       {{"", "mean",
         mean_of_layers(result, [](const auto& layer) { return layer.level.par_step_mean; })},
        {"", "noise floor",
         mean_of_layers(result, [](const auto& layer) { return layer.noise_floor; }), 4, true}}},
      {"PAR of the recording",
       "loads summed over all steps, mean over layers",
       true,
       {{"", "mean", mean_of_layers(result, [](const auto& layer) { return layer.level.par; })}}},
      {"Worst step",
       fmt::format("layer {}, step {}", worst.id, loads.step_ids[worst.level.worst_step]),
       true,
       {{"", "PAR", worst.level.par_step_worst}}}};
  if (worst.drift) {
    all.push_back(
        {"Drift",
         fmt::format("of the tokens, between windows of {} step{}", result.window,
                     result.window == 1 ? "" : "s"),
         false,
         {{"", "% mean",
           100 * mean_of_layers(result, [](const auto& layer) { return layer.drift->mean; }), 1}}});
  }
  all.push_back({"Tokens",
                 "of all layers, once for each expert",
                 false,
                 {{"tokens", "", static_cast<double>(result.tokens), 0}}});
  return all;
}

ReportTable layer_table(const Recording& loads, const Inspection& result) {
  ReportTable table{"Every layer", "layer", {}, {}};
  table.columns = {{"par_step_mean", "PAR of a step, mean"},
                   {"noise_floor", "noise floor"},
                   {"par_step_worst", "worst step"},
                   {"worst_step", "its number", 0},
                   {"par", "PAR of the recording"},
                   {"drift_mean", "drift, mean"},
                   {"drift_worst", "worst"},
                   {"", "hottest expert", 0},
                   {"", "its share"}};
  if (result.served.cost) table.columns.push_back({"par_time", "PAR of a step in time"});
  for (const InspectedLayer& layer : result.layers) {
    std::vector<std::optional<double>> row = {
        layer.level.par_step_mean, layer.noise_floor, layer.level.par_step_worst,
        static_cast<double>(loads.step_ids[layer.level.worst_step]), layer.level.par};
    row.push_back(layer.drift ? std::optional(layer.drift->mean) : std::nullopt);
    row.push_back(layer.drift ? std::optional(layer.drift->worst) : std::nullopt);
    row.push_back(layer.hottest[0].expert);
    row.push_back(layer.hottest[0].share);
    if (result.served.cost) row.push_back(layer.par_time);
    table.rows.push_back({fmt::format("{}", layer.id), std::move(row)});
  }
  return table;
}

}  // namespace

Report inspect_page(const InspectOptions& options, const Recording& loads,
                    const Placement& placement, const Inspection& result) {
  Report report = report_on("inspect", options.loads, loads, placement);
  report.facts.push_back({"Placed", options.current.empty()
                                        ? "experts in order"
                                        : printable(valid_utf8(options.current))});
  for (size_t l = 0; l < result.layers.size(); ++l) report.layer_ids[l] = result.layers[l].id;
  report.headlines = headlines(loads, result);
  report.states = {report_state("as placed", placement, report.expert_load)};
  if (loads.load.num_steps > 1) {
    report.timeline = {"step", loads.step_ids, {report_series("as placed", placement, loads.load)}};
  }
  report.tables = {layer_table(loads, result)};
  report.definitions = {par_of_a_step(),
                        {"PAR of the recording", "Of the loads summed over all steps."},
                        {"Noise floor",
                         "The mean PAR of a step that chance alone leaves when all ranks expect "
                         "the same load: E[max] / mean "
                         "of as many independent Poisson counts as there are ranks. A step PAR "
                         "near it leaves nothing to plan."},
                        {"Drift",
                         "Half the sum over the experts of the change of their share of the tokens "
                         "from one window to the next: the "
                         "part of the tokens that went to other experts."}};
  report.node_of_rank = result.topology.node_of_rank;
  if (result.traffic) add_traffic(*result.traffic, report);
  return report;
}

}  // namespace trimtab::cli
