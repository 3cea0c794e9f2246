// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <numeric>

#include "cli/plan_result.h"
#include "cli/report_facts.h"
#include "cli/text.h"

namespace trimtab::cli {

namespace {

std::vector<ReportHeadline> headlines(const PlanOptions& options, const Plan& plan, int64_t steps) {
  ReportHeadline moves{"Moves", "experts whose weights go to another rank", false, {}};
  moves.numbers = {{"moves", "all layers", static_cast<double>(plan.moves.size()), 0},
                   {"moves_per_layer", "a layer", moves_per_layer(plan), 2}};
  moves.numbers.push_back({"receive_peak", "most into a rank", static_cast<double>(receive_peak(plan)), 0});
  if (options.expert_bytes > 0) moves.numbers.push_back({"", "bytes", static_cast<double>(plan.bytes), 0});
  const int64_t duplicates = std::accumulate(plan.duplicates.begin(), plan.duplicates.end(), int64_t{0});
  return {{"PAR of a step",
           "mean over steps and layers",
           true,
           {{"par_step_before", "before", mean(plan, &LayerPrediction::par_step_before)},
            {"par_step_after", "after", mean(plan, &LayerPrediction::par_step_after)},
            {"par_step_after_high", "up to", mean(plan, &LayerPrediction::par_step_after_high), 4, true}}},
          {"PAR of the window",
           fmt::format("loads summed over {} step{}, mean over layers", steps, steps == 1 ? "" : "s"),
           true,
           {{"par_before", "before", mean(plan, &LayerPrediction::par_before)},
            {"par_after", "after", mean(plan, &LayerPrediction::par_after)},
            {"lower_bound", "bound", mean(plan, &LayerPrediction::bound_equal), 4, true},
            {"lower_bound_split", "bound, split", mean(plan, &LayerPrediction::bound_exact), 4, true}}},
          std::move(moves),
          {"Duplicates",
           "slots whose expert their rank has already",
           false,
           {{"duplicates", "all layers", static_cast<double>(duplicates), 0}}}};
}

ReportTable layer_table(const PlanResult& result, const std::vector<std::vector<int>>& moved) {
  const Plan& plan = result.plan;
  ReportTable table{"Every layer", "layer", {}, {}};
  table.columns = {{"par_step_before", "PAR of a step before"},
                   {"par_step_after", "after"},
                   {"par_step_after_high", "up to"},
                   {"par_before", "PAR of the window before"},
                   {"par_after", "after"},
                   {"lower_bound", "bound"},
                   {"lower_bound_split", "bound, split"},
                   {"moves", "moves", 0},
                   {"receive_peak", "most into a rank", 0},
                   {"duplicates", "duplicates", 0}};
  for (size_t l = 0; l < plan.layers.size(); ++l) {
    const LayerPrediction& layer = plan.layers[l];
    table.rows.push_back({fmt::format("{}", result.layer_ids[l]),
                          {layer.par_step_before, layer.par_step_after, layer.par_step_after_high, layer.par_before,
                           layer.par_after, layer.bound_equal, layer.bound_exact, static_cast<double>(moved[l].size()),
                           static_cast<double>(plan.receive_peak[l]), static_cast<double>(plan.duplicates[l])}});
  }
  return table;
}

}  // namespace

Report page_report(const PlanOptions& options, const Recording& loads, const Placement& current,
                   const PlanResult& result) {
  const Plan& plan = result.plan;
  Report report = report_on("plan", options.loads, loads, current);
  add_planner_facts(report, options, current, "Before");
  report.facts.push_back(
      {"Policy", options.preset.empty() ? options.policy : fmt::format("{}, {}", options.policy, options.preset)});
  report.layer_ids = result.layer_ids;
  report.moved.resize(plan.layers.size());
  for (const Move& move : plan.moves) report.moved[static_cast<size_t>(move.layer)].push_back(move.slot);
  report.headlines = headlines(options, plan, loads.load.num_steps);
  report.states = {report_state("before", current, report.expert_load),
                   report_state("after", plan.placement, report.expert_load)};
  if (loads.load.num_steps > 1) {
    report.timeline = {
        "step",
        loads.step_ids,
        {report_series("before", current, loads.load), report_series("after", plan.placement, loads.load)}};
  }
  report.tables = {layer_table(result, report.moved)};
  report.definitions = {
      par_of_a_step(),
      {"PAR of the window", "Of the loads summed over all steps."},
      {"Bound",
       "Proved: no placement with these slots, and no expert twice on a rank where that can be avoided, has a "
       "lower PAR of the window."},
      {"Bound, split",
       "The same where an expert's tokens may be split over its replicas in any parts, as replay --split split does."},
      {"Up to", "Upper end of the 95 % interval of the mean PAR of a step."},
      {"Before, after",
       "Both of the same recorded loads, those that the plan was made from. On other loads a plan gains "
       "less: see trimtab check and replay."}};
  return report;
}

}  // namespace trimtab::cli
