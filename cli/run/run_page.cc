// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/output/text.h"
#include "cli/plan/report_facts.h"
#include "cli/run/replans.h"
#include "cli/run/run_recorder.h"
#include "cli/run/run_result.h"
#include "trimtab/par.h"

namespace trimtab::cli {

namespace {

// The mean of the figures of all layers.
Levelness mean_levelness(const RankLoads& loads, StepRange steps) {
  std::vector<Levelness> layers;
  for (int layer = 0; layer < loads.num_layers(); ++layer)
    layers.push_back(levelness(loads, layer, steps));
  return mean_over_layers(layers);
}

double mean_noise_floor(const RankLoads& loads) {
  double sum = 0;
  for (int layer = 0; layer < loads.num_layers(); ++layer)
    sum += noise_floor(loads, layer, loads.all_steps());
  return sum / loads.num_layers();
}

void add_level_headlines(const RankLoads& loads, bool shared_exactly, Report& report) {
  ReportHeadline summed{
      "PAR of the loads", "summed over a third of the steps, mean over layers", true, {}};
  ReportHeadline single{"PAR of a step", "mean over the steps of a third and layers", true, {}};
  const char* const names[] = {"first", "middle", "last"};
  const std::vector<StepRange> parts = thirds(loads.num_steps());
  for (size_t i = 0; i < parts.size(); ++i) {
    const Levelness level = mean_levelness(loads, parts[i]);
    summed.numbers.push_back({"par_by_third", names[i], level.par, 3});
    single.numbers.push_back({"", names[i], level.par_step_mean, 3});
  }
  if (parts.empty()) {
    const Levelness level = mean_levelness(loads, loads.all_steps());
    summed.about = "summed over all steps, mean over layers";
    single.about = "mean over steps and layers";
    summed.numbers = {{"", "run", level.par, 3}};
    single.numbers = {{"", "run", level.par_step_mean, 3}};
  }
  // Exact shares level what chance has made uneven.
  if (!shared_exactly)
    single.numbers.push_back({"", "noise floor", mean_noise_floor(loads), 3, true});
  report.headlines.push_back(std::move(summed));
  report.headlines.push_back(std::move(single));
}

void add_time_headline(const std::vector<double>& pars, Report& report) {
  if (pars.empty()) return;
  report.headlines.push_back({"PAR of a step in time",
                              "by the cost model, mean over the steps of a third and layers",
                              true,
                              {{"par_time_by_third", "first", pars[0], 3},
                               {"par_time_by_third", "middle", pars[1], 3},
                               {"par_time_by_third", "last", pars[2], 3}}});
}

void add_speed_headline(const RunResult& result, Report& report) {
  report.headlines.push_back(
      {"Speed",
       "new tokens of all prompts; the time includes reading them",
       false,
       {{"tokens_per_second", "tokens/s", static_cast<double>(result.tokens) / result.seconds, 0},
        {"tokens", "tokens", static_cast<double>(result.tokens), 0}}});
}

void add_balance_headlines(const BalanceMetrics& m, Report& report) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  ReportHeadline last{"PAR of the last window",
                      "of its loads in rows, and of a step in time where there is a cost model",
                      true,
                      {{"par_rows", "rows", m.par_rows, 3}}};
  if (m.par_time) last.numbers.push_back({"par_time", "time", *m.par_time, 3});
  report.headlines.push_back(std::move(last));
  report.headlines.push_back({"Replans",
                              "plans that were applied, and those that were not",
                              false,
                              {{"", "applied", number(m.rebalances), 0},
                               {"", "rejected", number(m.plans_rejected), 0},
                               {"", "failed", number(m.plans_failed), 0},
                               {"", "late", number(m.plans_late), 0}}});
  report.headlines.push_back({"Moves",
                              "expert weights that went to another slot",
                              false,
                              {{"", "moves", number(m.moves), 0},
                               {"", "bytes", number(m.moved_bytes), 0},
                               {"", "layers rolled back", number(m.rolled_back_layers), 0}}});
  report.headlines.push_back(
      {"Gain",
       "PAR before less PAR after, of the last plan that was applied",
       false,
       {{"", "predicted", m.predicted_gain, 3}, {"", "realised", m.realised_gain, 3}}});
  report.headlines.push_back(
      {"Cost",
       "seconds in the planner, and by which steps were held up",
       false,
       {{"", "planning", m.plan_seconds, 3}, {"", "stalls", m.stall_seconds, 3}}});
}

ReportState state_of(std::string name, const Placement& placement, const RankLoads& loads,
                     StepRange steps) {
  ReportState state{std::move(name), placement, {}};
  for (int layer = 0; layer < loads.num_layers(); ++layer) {
    const std::vector<double> rows = summed_loads(loads, layer, steps);
    state.rank_load.insert(state.rank_load.end(), rows.begin(), rows.end());
  }
  return state;
}

// Slots of `end` whose expert was on another rank at the start: [layers].
std::vector<std::vector<int>> moved_slots(const Placement& start, const Placement& end) {
  std::vector<std::vector<int>> moved(end.num_layers());
  for (int layer = 0; layer < end.num_layers(); ++layer) {
    for (int slot = 0; slot < end.num_slots(); ++slot) {
      const int rank = end.rank_of_slot(slot);
      const auto before =
          start.logical(layer).subspan(start.first_slot(rank), start.slots_of_rank(rank));
      const int32_t expert = end.logical(layer)[slot];
      if (std::ranges::find(before, expert) == before.end()) moved[layer].push_back(slot);
    }
  }
  return moved;
}

void add_states(const RunResult& result, Report& report) {
  const std::vector<StepRange> parts = thirds(result.loads.num_steps());
  if (!result.metrics || parts.empty()) {
    report.states = {state_of("as placed", result.end, result.loads, result.loads.all_steps())};
    return;
  }
  report.states = {state_of("first third", result.start, result.loads, parts.front()),
                   state_of("last third", result.end, result.loads, parts.back())};
  report.moved = moved_slots(result.start, result.end);
}

// The steps around each: of `window` of them, less at the ends.
ReportSeries summed_series(const RankLoads& loads, int64_t window) {
  const size_t steps = cells(loads.num_steps());
  ReportSeries series{fmt::format("summed over {} steps", window),
                      std::vector<double>(steps),
                      std::vector<double>(steps, 1.0),
                      {}};
  for (int layer = 0; layer < loads.num_layers(); ++layer) {
    std::vector<double> sum(cells(loads.num_ranks()));
    int64_t first = 0, last = 0;
    for (int64_t step = 0; step < loads.num_steps(); ++step) {
      for (; last < std::min(step + window - window / 2, loads.num_steps()); ++last) {
        std::ranges::transform(sum, loads.at(last, layer), sum.begin(), std::plus());
      }
      for (; first < step - window / 2; ++first) {
        std::ranges::transform(sum, loads.at(first, layer), sum.begin(), std::minus());
      }
      const double value = par(sum);
      series.par[step] += value / loads.num_layers();
      series.worst[step] = std::max(series.worst[step], value);
    }
  }
  return series;
}

void add_timeline(const RunResult& result, Report& report) {
  const RankLoads& loads = result.loads;
  if (loads.num_steps() < 2) return;
  ReportTimeline& timeline = report.timeline;
  timeline.unit = "step";
  timeline.points.resize(loads.num_steps());
  std::iota(timeline.points.begin(), timeline.points.end(), int64_t{0});
  timeline.series = {summed_series(loads, 1)};
  timeline.series[0].name = "each step";
  const int64_t window =
      std::max<int64_t>(loads.num_steps() / 24, 8);  // of fewer, chance is most of it
  if (loads.num_steps() >= 3 * window) timeline.series.push_back(summed_series(loads, window));
  if (!result.metrics) return;
  timeline.series[0].moves = moves_at(result.events, loads.num_steps());
  for (ReportMark& mark : replan_marks(result.events)) {
    if (mark.point >= 0 && mark.point < loads.num_steps())
      timeline.marks.push_back(std::move(mark));
  }
}

ReportTable layer_table(const RunResult& result) {
  const RankLoads& loads = result.loads;
  ReportTable table{"Every layer", "layer", {}, {}};
  table.columns = {{"par_per_layer", "PAR of the run"},
                   {"", "PAR of a step, mean"},
                   {"", "noise floor"},
                   {"", "worst step"}};
  if (!result.par_time_per_layer.empty())
    table.columns.push_back({"par_time_per_layer", "PAR of the run in time"});
  const std::vector<StepRange> parts = thirds(loads.num_steps());
  if (!parts.empty())
    table.columns.insert(table.columns.begin() + 1, {{"", "first third"}, {"", "last third"}});
  for (int layer = 0; layer < loads.num_layers(); ++layer) {
    const Levelness level = levelness(loads, layer);
    std::vector<std::optional<double>> row = {result.par_per_layer[layer]};
    if (!parts.empty()) {
      row.push_back(par(summed_loads(loads, layer, parts.front())));
      row.push_back(par(summed_loads(loads, layer, parts.back())));
    }
    row.insert(row.end(), {level.par_step_mean, noise_floor(loads, layer, loads.all_steps()),
                           level.par_step_worst});
    if (!result.par_time_per_layer.empty()) row.push_back(result.par_time_per_layer[layer]);
    table.rows.push_back({fmt::format("{}", result.moe_layers[layer]), std::move(row)});
  }
  return table;
}

void add_definitions(const RunResult& result, Report& report) {
  report.definitions = {
      par_of_a_step(),
      {"PAR of the loads, of the run",
       "Of the loads summed over the steps named: what placement can level. Single steps are less "
       "level by chance."},
      {"Noise floor",
       "The mean PAR of a step that chance alone leaves when all ranks expect the same load: "
       "E[max] / mean of as many "
       "independent Poisson counts as there are ranks. A step PAR near it leaves nothing to plan."},
      {"Step", "One forward pass, those that read prompts included; they have the most tokens."}};
  if (!result.metrics) return;
  report.definitions.push_back({"First third, last third",
                                "Rank loads as they were, under whatever placement was in force; "
                                "drawn with the placement at the start and the "
                                "one at the end. The loads of experts are of all steps."});
  report.definitions.push_back({"Predicted, realised gain",
                                "PAR before less PAR after, mean over the layers that change: "
                                "predicted on the window that the plan was made "
                                "from, realised on the steps after the switch."});
}

}  // namespace

Report run_page(const RunResult& result) {
  Report report;
  set_title(report, "run", result.model);
  report.facts = {
      {"Model", fmt::format("{} ({})", printable(result.model), result.model_type)},
      {"Dispatcher", result.dispatcher},
      {"Weights", result.dtype + quantised_parts(result)},
      {"Prompts", fmt::format("{} of {} tokens", result.outputs.size(), result.prompt_tokens)},
      {"Steps", fmt::format("{}", result.steps)}};
  add_sizes(report, result.moe_layers, result.end);
  report.expert_load = result.expert_load;
  report.split = result.split;
  add_level_headlines(result.loads, result.split == "split", report);
  add_time_headline(result.par_time_by_third, report);
  add_speed_headline(result, report);
  if (result.metrics) add_balance_headlines(*result.metrics, report);
  add_states(result, report);
  add_timeline(result, report);
  if (result.metrics) report.tables.push_back(replan_table(result.events));
  report.tables.push_back(layer_table(result));
  add_definitions(result, report);
  return report;
}

}  // namespace trimtab::cli
