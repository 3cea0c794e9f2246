// SPDX-License-Identifier: Apache-2.0
#include "trimtab/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "trimtab/error.h"

namespace trimtab {
namespace {

using Json = nlohmann::json;

// Two layers of three experts; the second has no tokens.
Report small_report() {
  const std::vector<int64_t> loads = {6, 2, 4, 0, 0, 0};
  Report report;
  report.title = "small";
  report.layer_ids = {3, 7};
  report.num_experts = 3;
  report.expert_load = loads;
  report.states = {report_state("before", Placement(2, 3, {1, 3}, {1, 0, 2, 0, 0, 1, 2, 0}), loads),
                   report_state("after", Placement(2, 3, {1, 3}, {0, 1, 2, 0, 0, 1, 2, 0}), loads)};
  report.moved = {{0, 1}, {}};
  return report;
}

Json data_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const size_t first = page.find(begin) + begin.size();
  return Json::parse(page.substr(first, page.find("</script>", first) - first));
}

std::string error_of(const Report& report) {
  try {
    report_html(report);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, StatesShareTokensAmongReplicas) {
  const Report report = small_report();
  EXPECT_EQ(report.states[0].rank_load, (std::vector<double>{2, 10, 0, 0}));
  EXPECT_EQ(report.states[1].rank_load, (std::vector<double>{3, 9, 0, 0}));
}

TEST(Report, SeriesAreMeansAndWorstOverLayers) {
  const Load load{2, 2, 2, {3, 1, 1, 1, 0, 0, 0, 4}};  // PAR 1.5 and 1, then 1 (no tokens) and 2
  const ReportSeries series = report_series("x", Placement::linear(2, 2, 2), load);
  EXPECT_EQ(series.par, (std::vector<double>{1.25, 1.5}));
  EXPECT_EQ(series.worst, (std::vector<double>{1.5, 2}));
  EXPECT_EQ(expert_load_of(load), (std::vector<int64_t>{3, 1, 1, 5}));
}

TEST(Report, OfAPlanHasItsNumbersMovesAndSteps) {
  const Load load{2, 2, 2, {3, 1, 1, 1, 0, 0, 0, 4}};
  const Placement current = Placement::linear(2, 2, 2);
  Plan plan{
      .placement = Placement(2, 2, {1, 1}, {1, 0, 0, 1}),
      .moves = {{0, 0, 1}, {0, 1, 0}},
      .receive_peak = {1, 0},
      .duplicates = {0, 0},
      .layers = {{.par_before = 1.5, .par_after = 1.25}, {.par_before = 2, .par_after = 1.75}},
      .bytes = 20,
      .history = {}};
  EXPECT_EQ(plan.mean(&LayerPrediction::par_before), 1.75);
  Report report = plan_report({load, current, plan, {5, 8}, {10, 20}});
  report.title = "plan";
  EXPECT_EQ(report.moved, (std::vector<std::vector<int>>{{0, 1}, {}}));
  const std::vector<ReportNumber>& window = report.headlines[1].numbers;
  EXPECT_EQ(window[0].value, 1.75);
  EXPECT_EQ(window[1].value, 1.5);
  EXPECT_EQ(report.headlines[2].numbers.back().value, 20);
  EXPECT_EQ(report.timeline.points, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(report.timeline.series[0].par, report_series("", current, load).par);
  EXPECT_EQ(report.tables[0].rows[1].name, "8");
  EXPECT_TRUE(contains(report_html(report), "bound"));
  const Load one_step{1, 2, 2, {3, 1, 1, 1}};
  EXPECT_TRUE(plan_report({one_step, current, plan, {5, 8}, {10}}).timeline.points.empty());
}

TEST(Report, SizesThatDoNotFitAreRefused) {
  EXPECT_THROW(report_state("x", Placement::linear(1, 2, 2), std::vector<int64_t>{1}),
               InvalidArgument);
  EXPECT_THROW(report_series("x", Placement::linear(1, 2, 2), Load{1, 1, 3, {1, 2, 3}}),
               InvalidArgument);
  EXPECT_EQ(error_of(small_report()), "");
  Report report = small_report();
  report.expert_load.pop_back();
  EXPECT_EQ(error_of(report), "report: expert loads: 5, expected 6");
  report = small_report();
  report.states[1].rank_load.push_back(1);
  EXPECT_EQ(error_of(report), "report: rank loads of after: 5, expected 4");
  report = small_report();
  report.states[1] =
      report_state("after", Placement(2, 3, {3}, {0, 1, 2, 0, 1, 2}), report.expert_load);
  EXPECT_EQ(error_of(report), "report: ranks of after: 1, expected 2");
  report = small_report();
  report.node_of_rank = {0};
  EXPECT_EQ(error_of(report), "report: nodes of ranks: 1, expected 2");
  report = small_report();
  report.moved[1] = {4};
  EXPECT_EQ(error_of(report), "report: a move to slot 4 of 4");
  report = small_report();
  report.timeline = {"step", {1, 2}, {{"a", {1}, {1}, {}}}};
  EXPECT_EQ(error_of(report), "report: points of a: 1, expected 2");
  report = small_report();
  report.tables = {{"t", "row", {{"k", "column"}}, {{"r", {}}}}};
  EXPECT_EQ(error_of(report), "report: columns of t, r: 0, expected 1");
  report = small_report();
  report.states.clear();
  EXPECT_EQ(error_of(report), "report: no state");
}

TEST(Report, NumbersThatAreNoneAreRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Report report = small_report();
  report.headlines = {{"PAR", "", true, {{"par", "now", kNan}}}};
  EXPECT_EQ(error_of(report), "report: PAR, now is nan");
  report = small_report();
  report.tables = {{"t", "row", {{"k", "column"}}, {{"r", {kInfinity}}}}};
  EXPECT_EQ(error_of(report), "report: t, r is inf");
  report = small_report();
  report.states[0].rank_load[1] = -1;
  EXPECT_EQ(error_of(report), "report: a rank load of before is -1");
  report = small_report();
  report.timeline = {"step", {1}, {{"a", {1}, {kNan}, {}}}};
  EXPECT_EQ(error_of(report), "report: a worst PAR of a is nan");
}

TEST(Report, AnyTextIsShownAsItIs) {
  const std::string wild = "</script><script>alert(1)</script>&\"'<!--";
  Report report = small_report();
  report.title = report.made_by = report.states[0].name = wild;
  report.facts = {{wild, wild}};
  report.headlines = {{wild, wild, true, {{wild, wild, 1}}}};
  report.timeline = {wild, {0}, {{wild, {1}, {1}, {}}}};
  report.tables = {{wild, wild, {{wild, wild}}, {{wild, {1}}}}};
  report.definitions = {{wild, wild}};
  const std::string page = report_html(report);
  EXPECT_FALSE(contains(page, "alert(1)</script>"));
  EXPECT_FALSE(contains(page, "<!--"));
  EXPECT_TRUE(contains(
      page,
      "<h1>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;&lt;!--</h1>"));
  EXPECT_EQ(data_of(page).at("states")[0].at("name"), wild);
  report.states[0].name = "\xff";  // no UTF-8
  EXPECT_EQ(data_of(report_html(report)).at("states")[0].at("name"), "\xef\xbf\xbd");
}

TEST(Report, NumbersKeepFullPrecision) {
  Report report = small_report();
  report.headlines = {
      {"a",
       "",
       false,
       {{"k", "now", 1.0 / 3, 2}, {"", "bytes", -1234567.0, 0}, {"", "", 999.5, 1}}}};
  const std::string page = report_html(report);
  EXPECT_TRUE(contains(page, R"(<data data-key="k" value="0.3333333333333333">0.33</data>)"));
  EXPECT_TRUE(contains(page, R"(<data value="-1234567">-1,234,567</data>)"));
  EXPECT_TRUE(contains(page, R"(<data value="999.5">999.5</data>)"));
}

TEST(Report, DataAreLoadsOverTheMean) {
  const Json data = data_of(report_html(small_report()));
  EXPECT_EQ(data.at("ids"), Json({3, 7}));
  EXPECT_EQ(data.at("tokens"), Json({12, 0}));
  EXPECT_EQ(data.at("expert_parts"), 1000);
  EXPECT_EQ(data.at("rank_parts"), 10000);
  EXPECT_EQ(data.at("expert"), Json({{1500, 500, 1000}, {0, 0, 0}}));
  const Json before = data.at("states")[0];
  EXPECT_EQ(before.at("slots"), Json({1, 3}));
  EXPECT_EQ(before.at("map"), Json({{1, 0, 2, 0}, {0, 1, 2, 0}}));
  EXPECT_EQ(before.at("rank"), Json({{3333, 16667}, {0, 0}}));
  EXPECT_EQ(data.at("moved"), Json({{0, 1}, Json::array()}));
}

TEST(Report, APlacementAloneHasNoDrawingsOfLoads) {
  Report report = small_report();
  EXPECT_TRUE(contains(report_html(report), "id=\"ranks\""));
  report.expert_load.assign(6, 0);
  for (ReportState& state : report.states) state.rank_load.assign(4, 0.0);
  const std::string page = report_html(report);
  for (const std::string lacks : {"id=\"ranks\"", "id=\"rank-map\"", "Balancedness"}) {
    EXPECT_FALSE(contains(page, lacks)) << lacks;
  }
  for (const std::string has : {"id=\"expert-map\"", "id=\"placement\"", "<dt>Replica</dt>"}) {
    EXPECT_TRUE(contains(page, has)) << has;
  }
}

TEST(Report, LongTimelinesAreDrawnInCoarserPoints) {
  Report report = small_report();
  ReportSeries series{"a", {}, {}, {}};
  for (int i = 0; i < 1001; ++i) {
    report.timeline.points.push_back(10 + i);
    series.par.push_back(i % 2 == 0 ? 1 : 2);
    series.worst.push_back(i == 500 ? 9 : 3);
    series.moves.push_back(i % 3 == 0 && i > 3 ? 5 : -1);
  }
  report.timeline.unit = "step";
  report.timeline.series = {series};
  const Json time = data_of(report_html(report)).at("time");
  EXPECT_EQ(time.at("of"), 3);
  EXPECT_EQ(time.at("points").size(), 334U);
  EXPECT_EQ(time.at("points")[1], 13);
  const Json drawn = time.at("series")[0];
  EXPECT_DOUBLE_EQ(drawn.at("par")[0], 1.3333);
  EXPECT_DOUBLE_EQ(drawn.at("par")[333], 1.5);  // the last two
  EXPECT_EQ(drawn.at("worst")[166], 9);
  EXPECT_EQ(std::count(drawn.at("worst").begin(), drawn.at("worst").end(), 9), 1);
  EXPECT_EQ(drawn.at("moves")[0], -1);
  EXPECT_EQ(drawn.at("moves")[2], 5);
}

TEST(Report, MarksStandAtTheirPoints) {
  Report report = small_report();
  report.timeline.unit = "step";
  ReportSeries series{"a", {}, {}, {}};
  for (int i = 0; i < 1001; ++i) {
    report.timeline.points.push_back(10 + i);
    series.par.push_back(1);
    series.worst.push_back(1);
  }
  report.timeline.series = {series};
  report.timeline.marks = {{10, "first", false}, {12, "same", true}, {1010, "last", false}};
  for (int i = 0; i < 6; ++i) report.timeline.marks.push_back({16, std::to_string(i), false});
  EXPECT_EQ(
      data_of(report_html(report)).at("time").at("marks"),
      Json({{{"at", 0}, {"texts", {"step 10: first", "step 12: same"}}, {"trouble", true}},
            {{"at", 2},
             {"texts", {"step 16: 0", "step 16: 1", "step 16: 2", "step 16: 3", "and 2 more"}},
             {"trouble", false}},
            {{"at", 333}, {"texts", {"step 1010: last"}}, {"trouble", false}}}));
  report.timeline.marks = {{9, "before", false}};
  EXPECT_EQ(error_of(report), "report: a mark at 9, outside of the 1001 points");
  report.timeline.marks = {{1011, "behind", false}};
  EXPECT_EQ(error_of(report), "report: a mark at 1011, outside of the 1001 points");
}

TEST(Report, StatesMayBeOfOtherTokens) {
  Report report = small_report();
  report.states[1].rank_load = {1, 3, 2, 2};
  const Json states = data_of(report_html(report)).at("states");
  EXPECT_EQ(states[0].at("tokens"), Json({12, 0}));
  EXPECT_EQ(states[1].at("tokens"), Json({4, 4}));
  EXPECT_EQ(states[1].at("rank"), Json({{5000, 15000}, {10000, 10000}}));
}

// Experts in order on `ranks`, twice each; expert 0 is the hotter the higher the layer.
Report large_report(int layers, int experts, int ranks) {
  Report report;
  report.num_experts = experts;
  std::vector<int32_t> map;
  for (int layer = 0; layer < layers; ++layer) {
    report.layer_ids.push_back(layer);
    for (int e = 0; e < 2 * experts; ++e) map.push_back(e % experts);
    for (int e = 0; e < experts; ++e)
      report.expert_load.push_back(e == 0 ? 100'000 + 1000 * layer : 700 + e);
  }
  const Placement placement(layers, experts, std::vector<int>(ranks, 2 * experts / ranks), map);
  report.states = {report_state("before", placement, report.expert_load),
                   report_state("after", placement, report.expert_load)};
  std::vector<int> all(static_cast<size_t>(2 * experts));
  for (size_t slot = 0; slot < all.size(); ++slot) all[slot] = static_cast<int>(slot);
  report.moved.assign(layers, all);
  ReportTable table{"Layers", "layer", {{"a", "a"}, {"b", "b"}}, {}};
  for (int layer = 0; layer < layers; ++layer)
    table.rows.push_back({std::to_string(layer), {1.0 / 3, layer}});
  report.tables = {table};
  return report;
}

TEST(Report, StaysSmallForLargeModels) {
  for (const auto& [layers, experts, ranks] :
       {std::array{58, 256, 32}, {58, 1024, 1024}, {1, 1024, 64}, {5000, 8, 8}}) {
    const std::string page = report_html(large_report(layers, experts, ranks));
    EXPECT_LT(page.size(), 2'000'000U) << layers << " x " << experts;
    const Json data = data_of(page);
    const auto drawn = static_cast<int>(data.at("ids").size());
    EXPECT_EQ(drawn == layers, experts == 256 || layers == 1) << layers << " x " << experts;
    if (drawn == layers) continue;
    EXPECT_TRUE(contains(
        page, "Drawn: the " + std::to_string(drawn) + " most uneven of " + std::to_string(layers)));
    EXPECT_EQ(data.at("ids")[0], layers - drawn);
  }
  const std::string page = report_html(large_report(1, 1 << 17, 4));
  EXPECT_LT(page.size(), 2'000'000U);
  EXPECT_TRUE(contains(page, "A layer is too large to draw"));
}

TEST(Report, TrafficIsDrawnOverTheMeanOfTheFirstState) {
  Report report = small_report();
  EXPECT_FALSE(contains(report_html(report), "id=\"traffic\""));
  report.states[0].rank_copies = {8, 1, 3, 5};
  report.states[1].rank_copies = {8, 2, 4, 5};
  report.token_bytes = 16;
  const std::string page = report_html(report);
  EXPECT_TRUE(contains(page, "id=\"traffic\""));
  const Json data = data_of(page);
  EXPECT_EQ(data.at("traffic"), Json({{"mean", 2.0}, {"ranks", 1}, {"token_bytes", 16}}));
  EXPECT_EQ(data.at("states")[0].at("traffic"), Json({{40000, 5000}, {15000, 25000}}));
  EXPECT_EQ(data.at("states")[1].at("traffic"), Json({{40000, 10000}, {20000, 25000}}));
  report.states[1].rank_copies.pop_back();
  EXPECT_EQ(error_of(report), "report: traffic of after: 3, expected 4");
  report.states[1].rank_copies = {1, 1, -1, 1};
  EXPECT_EQ(error_of(report), "report: traffic of after is -1");
}

TEST(Report, TrafficOfManyRanksIsDrawnForSeveralTogether) {
  constexpr int kRanks = 300;
  Report report = large_report(1, kRanks, kRanks);
  report.states[0].rank_copies.assign(cells(kRanks, kRanks), 1.0);
  const Json data = data_of(report_html(report));
  EXPECT_EQ(data.at("traffic").at("ranks"), 3);
  const Json rows = data.at("states")[0].at("traffic");
  ASSERT_EQ(rows.size(), 100U);
  ASSERT_EQ(rows[99].size(), 100U);
  EXPECT_EQ(data.at("traffic").at("mean"), 9);
  EXPECT_EQ(data.at("states")[1].at("traffic"), Json::array());
}

TEST(Report, TheSameReportGivesTheSameBytes) {
  EXPECT_EQ(report_html(small_report()), report_html(small_report()));
}

TEST(Report, IsWrittenWhole) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("trimtab_report_test_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = (folder / "page.html").string();
  write_report(file, small_report());
  std::ifstream in(file, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), report_html(small_report()));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_report(file, small_report()), Error);
}

}  // namespace
}  // namespace trimtab
