// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/output/text.h"
#include "cli/plan/check.h"
#include "cli/plan/report_facts.h"
#include "trimtab/table.h"

namespace trimtab::cli {

namespace {

void add_level_headlines(const Recording& loads, const CheckResult& result,
                         std::vector<ReportHeadline>& all) {
  const Levelness mean = mean_over_layers(result.levels);
  const auto worst = std::ranges::max_element(result.levels, {}, &Levelness::par_step_worst);
  all.push_back(
      {"PAR of a step", "mean over steps and layers", true, {{"", "mean", mean.par_step_mean}}});
  all.push_back({"PAR of the loads",
                 "summed over all steps, mean over layers",
                 true,
                 {{"", "mean", mean.par}}});
  all.push_back({"Worst step",
                 fmt::format("layer {}, step {}", result.layer_ids[worst - result.levels.begin()],
                             loads.step_ids[worst->worst_step]),
                 true,
                 {{"", "PAR", worst->par_step_worst}}});
}

ReportTable layer_table(const CheckResult& result) {
  ReportTable table{"Every layer", "layer", {}, {}};
  table.columns = {{"duplicates_per_layer", "duplicates", 0}};
  if (!result.levels.empty()) {
    table.columns.insert(table.columns.end(), {{"par_step_mean_per_layer", "PAR of a step, mean"},
                                               {"par_step_worst_per_layer", "worst step"},
                                               {"par_per_layer", "PAR of the loads"}});
    if (!result.par_time.empty())
      table.columns.push_back({"par_time_per_layer", "PAR of a step in time"});
  }
  for (size_t l = 0; l < result.layer_ids.size(); ++l) {
    std::vector<std::optional<double>> row = {static_cast<double>(result.duplicates[l])};
    if (!result.levels.empty()) {
      const Levelness& level = result.levels[l];
      row.insert(row.end(), {level.par_step_mean, level.par_step_worst, level.par});
      if (!result.par_time.empty()) row.push_back(result.par_time[l]);
    }
    table.rows.push_back({fmt::format("{}", result.layer_ids[l]), std::move(row)});
  }
  return table;
}

}  // namespace

Report check_page(const CheckOptions& options, const PlacementFile& file, const Recording* loads,
                  const CheckResult& result) {
  const Placement& placement = file.placement;
  Report report;
  set_title(report, "check", options.placement);
  report.facts.push_back(
      {"Placement",
       fmt::format("{} ({})", printable(valid_utf8(options.placement)), result.format)});
  const auto policy = file.metadata.find("policy");
  if (policy != file.metadata.end())
    report.facts.push_back({"Policy", printable(valid_utf8(policy->second))});
  if (loads != nullptr) {
    add_loads_facts(report, options.loads, *loads);
    add_level_headlines(*loads, result, report.headlines);
    report.definitions = {par_of_a_step(),
                          {"PAR of the loads", "Of the loads summed over all steps."}};
  } else {
    report.expert_load.assign(cells(placement.num_layers(), placement.num_experts()), 0);
  }
  add_sizes(report, result.layer_ids, placement);
  report.headlines.push_back(
      {"Replicas",
       "slots of a layer beyond one for each expert",
       false,
       {{"", "", static_cast<double>(placement.num_slots() - placement.num_experts()), 0}}});
  const int64_t duplicates =
      std::accumulate(result.duplicates.begin(), result.duplicates.end(), int64_t{0});
  report.headlines.push_back({"Duplicates",
                              "slots whose expert their rank has already",
                              false,
                              {{"", "all layers", static_cast<double>(duplicates), 0}}});
  report.states = {report_state("as placed", placement, report.expert_load)};
  if (loads != nullptr && loads->load.num_steps > 1) {
    report.timeline = {
        "step", loads->step_ids, {report_series("as placed", placement, loads->load)}};
  }
  report.tables = {layer_table(result)};
  report.node_of_rank = result.topology.node_of_rank;
  if (result.traffic) add_traffic(*result.traffic, report);
  return report;
}

}  // namespace trimtab::cli
