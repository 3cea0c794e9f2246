// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cli/plan/report_facts.h"

namespace trimtab::cli {

ReplayReport::ReplayReport(const ReplayOptions& options, const Recording& loads,
                           const PlacementFile& start)
    : report_(report_on("replay", options.loads, loads, start.placement)),
      windows_(loads.load.num_steps / options.window - 1) {
  report_.expert_load =
      expert_load_of(steps_of(loads.load, {options.window, options.window * (windows_ + 1)}));
  report_.layer_ids = start.layer_ids;
  add_planner_facts(report_, options, start.placement, "Start");
  report_.facts.push_back(
      {"Window", fmt::format("{} step{}", options.window, options.window == 1 ? "" : "s")});
  const std::string& split = options.serving.split;
  if (split != "equal") report_.split = split;
  report_.facts.push_back(
      {"Tokens shared out", split == "equal" ? "equally" : "by the rule " + split});
  report_.timeline.unit = "window";
  for (int64_t w = 1; w <= windows_; ++w) report_.timeline.points.push_back(w);
}

void ReplayReport::add(const std::string& name, const Placement& placement, int64_t moves,
                       const WindowLevel& level) {
  std::vector<ReportSeries>& all = report_.timeline.series;
  if (all.empty() || static_cast<int64_t>(all.back().par.size()) == windows_) {
    all.push_back({name, {}, {}, {}});
    report_.states.push_back({name, placement, level.rank_load});
  } else {
    ReportState& state = report_.states.back();
    for (size_t i = 0; i < state.rank_load.size(); ++i) state.rank_load[i] += level.rank_load[i];
    state.placement = placement;
  }
  all.back().par.push_back(level.par);
  all.back().worst.push_back(level.worst);
  all.back().moves.push_back(moves);
}

Report ReplayReport::finish(ReportTable policies) {
  const ReportSeries& start = report_.timeline.series[0];
  const double sum = std::accumulate(start.par.begin(), start.par.end(), 0.0);
  for (const ReportTable::Row& row : policies.rows) {
    const ReportTable::Column& column = policies.columns[0];
    report_.headlines.push_back(
        {row.name,
         "mean over steps, windows and layers",
         true,
         {{column.key, column.label, *row.values[0], column.decimals},
          {"", kStart, sum / static_cast<double>(start.par.size()), 4, true}}});
  }
  report_.tables.push_back(std::move(policies));
  report_.definitions = {
      {"Window by window",
       "Each policy plans on a window, from its own last placement, and is measured on the next. "
       "The "
       "first window is planned on only; steps that fill no window are left out."},
      {"PAR of a step",
       "Of the loads of one step; the mean over steps, windows and layers, or the worst of all."},
      {"Start", "What all policies start from, never planned: measured on the same windows."},
      {"Drawn for a policy",
       "Rank loads are summed over the windows, each under the placement that was in force; the "
       "placement is the last one."},
      {"First moves, replans",
       "The first plan starts from what all start from; every later one is a replan."}};
  return std::move(report_);
}

}  // namespace trimtab::cli
