// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "trimtab/report.h"

namespace trimtab {
namespace {

std::vector<ReportHeadline> headlines(const Plan& plan, int64_t steps) {
  const auto moves = static_cast<double>(plan.moves.size());
  const auto layers = static_cast<double>(plan.layers.size());
  const auto peak =
      static_cast<double>(*std::max_element(plan.receive_peak.begin(), plan.receive_peak.end()));
  ReportHeadline moved{"Moves", "experts whose weights go to another rank", false, {}};
  moved.numbers = {{"moves", "all layers", moves, 0},
                   {"moves_per_layer", "a layer", moves / layers, 2}};
  moved.numbers.push_back({"receive_peak", "most into a rank", peak, 0});
  if (plan.bytes > 0) moved.numbers.push_back({"", "bytes", static_cast<double>(plan.bytes), 0});
  const double duplicates = std::accumulate(plan.duplicates.begin(), plan.duplicates.end(), 0.0);
  return {
      {"PAR of a step",
       "mean over steps and layers",
       true,
       {{"par_step_before", "before", plan.mean(&LayerPrediction::par_step_before)},
        {"par_step_after", "after", plan.mean(&LayerPrediction::par_step_after)},
        {"par_step_after_high", "up to", plan.mean(&LayerPrediction::par_step_after_high), 4,
         true}}},
      {"PAR of the window",
       cat("loads summed over ", steps, steps == 1 ? " step" : " steps", ", mean over layers"),
       true,
       {{"par_before", "before", plan.mean(&LayerPrediction::par_before)},
        {"par_after", "after", plan.mean(&LayerPrediction::par_after)},
        {"lower_bound", "bound", plan.mean(&LayerPrediction::bound_equal), 4, true},
        {"lower_bound_split", "bound, split", plan.mean(&LayerPrediction::bound_exact), 4, true}}},
      std::move(moved),
      {"Duplicates",
       "slots whose expert their rank has already",
       false,
       {{"duplicates", "all layers", duplicates, 0}}}};
}

ReportTable layer_table(const Plan& plan, const std::vector<int>& layer_ids,
                        const std::vector<std::vector<int>>& moved) {
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
    table.rows.push_back(
        {std::to_string(layer_ids[l]),
         {layer.par_step_before, layer.par_step_after, layer.par_step_after_high, layer.par_before,
          layer.par_after, layer.bound_equal, layer.bound_exact,
          static_cast<double>(moved[l].size()), static_cast<double>(plan.receive_peak[l]),
          static_cast<double>(plan.duplicates[l])}});
  }
  return table;
}

}  // namespace

ReportText par_of_a_step() {
  return {"PAR of a step",
          "Of the loads of one step, then the mean over the steps. Ranks wait for each other in "
          "every step, "
          "so this is what you pay."};
}

Report plan_report(PlanStory story) {
  const Plan& plan = story.plan;
  Report report;
  report.layer_ids = std::move(story.layer_ids);
  report.num_experts = story.current.num_experts();
  report.node_of_rank = std::move(story.node_of_rank);
  report.expert_load = expert_load_of(story.load);
  report.moved.resize(plan.layers.size());
  for (const Move& move : plan.moves) report.moved[move.layer].push_back(move.slot);
  report.headlines = headlines(plan, story.load.num_steps);
  report.states = {report_state("before", story.current, report.expert_load),
                   report_state("after", plan.placement, report.expert_load)};
  if (story.load.num_steps > 1) {
    report.timeline = {"step",
                       std::move(story.step_ids),
                       {report_series("before", story.current, story.load),
                        report_series("after", plan.placement, story.load)}};
  }
  report.curve = {plan.curve,
                  {.moves = std::ssize(plan.moves),
                   .par = plan.mean(&LayerPrediction::par_after),
                   .par_step = plan.mean(&LayerPrediction::par_step_after),
                   .step_seconds = plan.mean(&LayerPrediction::step_seconds_after)}};
  report.tables = {layer_table(plan, report.layer_ids, report.moved)};
  report.definitions = {par_of_a_step(),
                        {"PAR of the window", "Of the loads summed over all steps."},
                        {"Bound",
                         "Proved: no placement with these slots in which no rank holds an expert "
                         "twice has a lower PAR of the window. A placement with an expert twice on "
                         "a rank may have one."},
                        {"Bound, split",
                         "Proved: no placement with these slots at all has a lower PAR of the "
                         "window, where an expert's tokens may be split over its replicas in any "
                         "parts, as replay --split split does."},
                        {"Up to", "Upper end of the 95 % interval of the mean PAR of a step."},
                        {"Before, after",
                         "Both of the same recorded loads, those that the plan was made from. On "
                         "other loads a plan gains "
                         "less: see trimtab check and replay."}};
  return report;
}

}  // namespace trimtab
