// SPDX-License-Identifier: Apache-2.0
// What the page of a run is made from: its loads by thirds, its replans, and the whole page of a
// run that balanced.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/replans.h"
#include "cli/run/run_recorder.h"
#include "cli/run/run_result.h"
#include "trimtab/par.h"

namespace trimtab::cli {
namespace {

using Kind = BalanceEvent::Kind;

// Two layers, two ranks. Layer 0 is uneven in the first two steps of six; layer 1 is level, or has
// nothing.
RankLoads some_loads(int64_t steps = 6) {
  const std::vector<int32_t> first = {6, 1, 8, 0, 3, 2, 1, 2, 4, 5, 4, 5},
                             second = {2, 1, 0, 0, 1, 2, 3, 2, 4, 5, 4, 5};
  const size_t counts = 2 * static_cast<size_t>(steps);
  return recorded_rank_loads(steps, 2,
                             std::vector<std::span<const int32_t>>{
                                 std::span(first).first(counts), std::span(second).first(counts)});
}

TEST(RunLoads, ThirdsAreOfAllStepsAndLevelToWithinOne) {
  for (int64_t steps = 0; steps < 20; ++steps) {
    const std::vector<StepRange> parts = thirds(steps);
    ASSERT_EQ(parts.size(), steps < 3 ? 0U : 3U);
    int64_t next = 0;
    for (const StepRange& part : parts) {
      EXPECT_EQ(part.first, next);
      EXPECT_LE(part.last - part.first, steps / 3 + 1);
      EXPECT_GE(part.last - part.first, steps / 3);
      next = part.last;
    }
    if (!parts.empty()) {
      EXPECT_EQ(next, steps);
    }
  }
}

// One plan that is rejected, one of which a layer is rolled back, one that comes late.
std::vector<BalanceEvent> some_events() {
  return {{.step = 1,
           .kind = Kind::kRejected,
           .seconds = 0.5,
           .predicted = 0.01,
           .text = "does not repay <2> moves"},
          {.step = 2,
           .kind = Kind::kPlanned,
           .moves = 3,
           .bytes = 300,
           .seconds = 0.25,
           .predicted = 0.5},
          {.step = 3, .kind = Kind::kSwitched, .layer = 0, .moves = 2, .bytes = 200},
          {.step = 3, .kind = Kind::kSwitched, .layer = 2, .moves = 1, .bytes = 50},
          {.step = 4, .kind = Kind::kRolledBack, .layer = 1, .text = "checksum"},
          {.step = 4,
           .kind = Kind::kCommitted,
           .moves = 3,
           .bytes = 250,
           .seconds = 0.125,
           .realised = 0.375},
          {.step = 5, .kind = Kind::kLate, .seconds = 9}};
}

TEST(Replans, MovesStandAtTheStepThatSwitched) {
  EXPECT_EQ(moves_at(some_events(), 6), (std::vector<int64_t>{-1, -1, -1, 3, -1, -1}));
  EXPECT_EQ(moves_at(some_events(), 3), (std::vector<int64_t>{-1, -1, -1}));
}

TEST(Replans, MarksSayWhatHappenedAndWhatStandsOut) {
  std::vector<std::string> texts;
  std::vector<int64_t> trouble;
  for (const ReportMark& mark : replan_marks(some_events())) {
    texts.push_back(mark.text);
    if (mark.is_trouble) trouble.push_back(mark.point);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{
                       "rejected: does not repay <2> moves", "planned, 3 moves",
                       "rolled back, MoE layer 1: checksum", "committed, 3 moves", "late"}));
  EXPECT_EQ(trouble, (std::vector<int64_t>{4, 5}));
}

TEST(Replans, EachPlanIsARow) {
  const ReportTable table = replan_table(some_events());
  using Row = std::vector<std::optional<double>>;
  ASSERT_EQ(table.rows.size(), 3U);
  constexpr std::nullopt_t kNone = std::nullopt;
  EXPECT_EQ(table.rows[0].name, "rejected: does not repay <2> moves");
  EXPECT_EQ(table.rows[0].values,
            (Row{1, kNone, kNone, kNone, kNone, kNone, 0.5, kNone, 0.01, kNone}));
  EXPECT_EQ(table.rows[1].values, (Row{2, 4, 2, 1, 3, 250, 0.25, 0.125, 0.5, 0.375}));
  EXPECT_EQ(table.rows[2].values, (Row{5, kNone, kNone, kNone, kNone, kNone, 9, kNone, 0, kNone}));
  for (const ReportTable::Row& row : table.rows) EXPECT_EQ(row.values.size(), table.columns.size());
}

TEST(Replans, AnEndWithoutABeginningIsPassedOver) {
  const std::vector<BalanceEvent> events = {
      {.step = 1, .kind = Kind::kSwitched, .layer = 0, .moves = 1},
      {.step = 2, .kind = Kind::kCommitted}};
  EXPECT_TRUE(replan_table(events).rows.empty());
  EXPECT_EQ(moves_at(events, 2), (std::vector<int64_t>{-1, 1}));
}

RunResult some_result(RankLoads loads, Placement start, Placement end) {
  RunResult result{.start = std::move(start), .end = std::move(end)};
  result.model = "models/tiny";
  result.loads = std::move(loads);
  result.expert_load.assign(8, 5);
  result.ranks = 2;
  result.steps = 6;
  result.tokens = 12;
  result.seconds = 2;
  result.moe_layers = {1, 3};
  result.par_per_layer = {1.2, 1};
  return result;
}

TEST(RunPage, OfARunThatDidNotBalance) {
  const Placement placement = Placement::linear(2, 4, 2);
  const Report report = run_page(some_result(some_loads(), placement, placement));
  EXPECT_FALSE(report_html(report).empty());
  EXPECT_EQ(report.title, "Run: tiny");
  ASSERT_EQ(report.states.size(), 1U);
  EXPECT_EQ(report.states[0].rank_load, (std::vector<double>{26, 14, 15, 15}));
  EXPECT_TRUE(report.moved.empty());
  EXPECT_TRUE(report.timeline.marks.empty());
  ASSERT_EQ(report.timeline.series.size(), 1U);
  EXPECT_EQ(report.timeline.series[0].par, (std::vector<double>{1.25, 1.5, 1.25, 1.25, 1, 1}));
  EXPECT_EQ(report.tables.size(), 1U);
}

TEST(RunPage, OfARunThatBalanced) {
  const Placement start = Placement::linear(2, 4, 2), end(2, 4, {2, 2}, {0, 2, 1, 3, 0, 1, 3, 2});
  RunResult result = some_result(some_loads(), start, end);
  result.metrics = BalanceMetrics{.par_rows = 1.5, .par_time = 1.25, .rebalances = 1};
  result.par_time_by_third = {3, 2, 1};
  result.events = some_events();
  const Report report = run_page(result);
  const std::string page = report_html(report);
  EXPECT_NE(page.find("does not repay &lt;2&gt; moves"), std::string::npos);
  ASSERT_EQ(report.states.size(), 2U);
  EXPECT_EQ(report.states[0].rank_load, (std::vector<double>{14, 2, 1, 1}));
  EXPECT_EQ(report.states[1].rank_load, (std::vector<double>{8, 8, 10, 10}));
  EXPECT_EQ(report.moved, (std::vector<std::vector<int>>{
                              {1, 2}, {}}));  // experts 2 and 1; layer 1 stays on its ranks
  EXPECT_EQ(report.timeline.marks.size(), 5U);
  EXPECT_EQ(report.timeline.series[0].moves, moves_at(some_events(), 6));
  EXPECT_EQ(report.tables.size(), 2U);
  const auto numbers = [&](const std::string& label) {
    std::vector<double> values;
    for (const ReportHeadline& headline : report.headlines) {
      for (const ReportNumber& number : headline.numbers)
        if (headline.label == label) values.push_back(number.value);
    }
    return values;
  };
  EXPECT_EQ(numbers("PAR of a step in time"), (std::vector<double>{3, 2, 1}));
  EXPECT_EQ(numbers("PAR of the last window"), (std::vector<double>{1.5, 1.25}));
}

TEST(RunPage, OfVeryShortRuns) {
  const Placement placement = Placement::linear(2, 4, 2);
  for (int64_t steps = 1; steps < 6; ++steps) {
    RunResult result = some_result(some_loads(steps), placement, placement);
    result.metrics = BalanceMetrics();
    result.events = some_events();
    EXPECT_FALSE(report_html(run_page(result)).empty());
  }
}

// The sum around a step is that of the steps themselves, at the ends as well.
TEST(RunPage, TheSummedSeriesIsOfTheStepsAround) {
  RankLoads loads(96, 1, 2);
  for (int64_t step = 0; step < 96; ++step) {
    loads.at(step, 0)[0] = static_cast<double>(step % 7);
    loads.at(step, 0)[1] = static_cast<double>(step % 5 + (step > 50 ? 3 : 0));
  }
  loads.sum_up_window();
  const Placement placement = Placement::linear(1, 2, 2);
  RunResult result = some_result(loads, placement, placement);
  result.moe_layers = {0};
  result.expert_load = {1, 1};
  const Report report = run_page(result);
  ASSERT_EQ(report.timeline.series.size(), 2U);
  const ReportSeries& summed = report.timeline.series[1];
  EXPECT_EQ(summed.name, "summed over 8 steps");
  for (int64_t step = 0; step < 96; ++step) {
    const StepRange around{std::max<int64_t>(step - 4, 0), std::min<int64_t>(step + 4, 96)};
    EXPECT_DOUBLE_EQ(summed.par[step], window_par(loads, around)) << step;
    EXPECT_EQ(summed.par, summed.worst);
  }
}

}  // namespace
}  // namespace trimtab::cli
