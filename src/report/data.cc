// SPDX-License-Identifier: Apache-2.0
#include "report/data.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/cat.h"
#include "report/page_limits.h"
#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

using Json = nlohmann::ordered_json;

// Parts of the mean: whole numbers take less room than fractions.
constexpr int kExpertParts = 1000, kRankParts = 10000;

// loads over their mean, in parts of it; 0 where there is no load.
template <class Value>
Json over_mean(std::span<const Value> loads, int parts) {
  const std::vector<double> values(loads.begin(), loads.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  const double scale = sum > 0 ? static_cast<double>(values.size()) * parts / sum : 0;
  Json result = Json::array();
  for (const double value : values) result.push_back(std::llround(value * scale));
  return result;
}

// The cells of the map of traffic: copies from some consecutive ranks to others.
struct TrafficMap {
  int ranks_in_row = 1;
  int rows = 0;
  std::vector<double> copies;  // [rows, rows]
};

TrafficMap traffic_map(const ReportState& state) {
  const int ranks = state.placement.num_ranks();
  TrafficMap map{.ranks_in_row = (ranks + kMostTrafficRows - 1) / kMostTrafficRows};
  map.rows = (ranks + map.ranks_in_row - 1) / map.ranks_in_row;
  if (state.rank_copies.empty()) return map;
  map.copies.resize(cells(map.rows, map.rows));
  const Table<const double> from(state.rank_copies, ranks);
  const Table to(map.copies, map.rows);
  for (int s = 0; s < ranks; ++s) {
    for (int r = 0; r < ranks; ++r) to(s / map.ranks_in_row, r / map.ranks_in_row) += from(s, r);
  }
  return map;
}

// The mean of the cells beside the diagonal, in which copies leave a rank.
double mean_copies(const TrafficMap& map) {
  double sum = std::accumulate(map.copies.begin(), map.copies.end(), 0.0);
  for (int r = 0; r < map.rows && !map.copies.empty(); ++r)
    sum -= map.copies[cells(r, map.rows + 1)];
  return map.rows < 2 ? 0 : std::max(0.0, sum) / map.rows / (map.rows - 1);
}

Json traffic_rows(const ReportState& state, double mean) {
  const TrafficMap map = traffic_map(state);
  Json rows = Json::array();
  if (map.copies.empty()) return rows;
  const Table<const double> copies(map.copies, map.rows);
  for (int r = 0; r < map.rows; ++r) {
    Json row = Json::array();
    for (const double value : copies[r])
      row.push_back(mean > 0 ? std::llround(value / mean * kRankParts) : 0);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json state_data(const ReportState& state, std::span<const int> layers, double mean_traffic) {
  const Placement& placement = state.placement;
  const Table<const double> rank_load(state.rank_load, placement.num_ranks());
  Json slots = Json::array(), map = Json::array(), rank = Json::array(), tokens = Json::array();
  for (int r = 0; r < placement.num_ranks(); ++r) slots.push_back(placement.slots_of_rank(r));
  for (const int layer : layers) {
    map.push_back(placement.logical(layer));
    const std::span<const double> loads = rank_load[layer];
    rank.push_back(over_mean(loads, kRankParts));
    tokens.push_back(std::llround(std::accumulate(loads.begin(), loads.end(), 0.0)));
  }
  return {{"name", state.name},        {"tokens", std::move(tokens)},
          {"slots", std::move(slots)}, {"map", std::move(map)},
          {"rank", std::move(rank)},   {"traffic", traffic_rows(state, mean_traffic)}};
}

double rounded(double par) {
  return std::round(par * 1e4) / 1e4;
}

// The moves of consecutive points: -1 when none of them had a plan.
int64_t sum_of_moves(std::span<const int64_t> moves) {
  int64_t sum = -1;
  for (const int64_t one : moves) {
    if (one >= 0) sum = std::max<int64_t>(sum, 0) + one;
  }
  return sum;
}

Json series_data(const ReportSeries& series, size_t group) {
  Json par = Json::array(), worst = Json::array(), moves = Json::array();
  for (size_t first = 0; first < series.par.size(); first += group) {
    const size_t n = std::min(group, series.par.size() - first);
    const auto pars = std::span(series.par).subspan(first, n),
               worsts = std::span(series.worst).subspan(first, n);
    par.push_back(rounded(mean_of(pars)));
    worst.push_back(rounded(*std::max_element(worsts.begin(), worsts.end())));
    if (!series.moves.empty())
      moves.push_back(sum_of_moves(std::span(series.moves).subspan(first, n)));
  }
  return {{"name", series.name},
          {"par", std::move(par)},
          {"worst", std::move(worst)},
          {"moves", std::move(moves)}};
}

// Marks of the same drawn point are one.
Json marks_data(const ReportTimeline& timeline, size_t group) {
  std::map<size_t, std::vector<const ReportMark*>> at;
  for (const ReportMark& mark : timeline.marks) {
    const auto next = std::upper_bound(timeline.points.begin(), timeline.points.end(), mark.point);
    const size_t drawn = next - timeline.points.begin() - 1;
    at[drawn / group].push_back(&mark);
  }
  Json all = Json::array();
  for (const auto& [point, marks] : at) {
    Json texts = Json::array();
    for (const ReportMark* mark : std::span(marks).first(std::min(marks.size(), kMostMarkTexts))) {
      texts.push_back(cat(timeline.unit, " ", mark->point, ": ", mark->text));
    }
    if (marks.size() > kMostMarkTexts)
      texts.push_back(cat("and ", marks.size() - kMostMarkTexts, " more"));
    const bool trouble = std::any_of(marks.begin(), marks.end(),
                                     [](const ReportMark* mark) { return mark->is_trouble; });
    all.push_back({{"at", point}, {"texts", std::move(texts)}, {"trouble", trouble}});
  }
  return all;
}

Json time_data(const ReportTimeline& timeline) {
  const size_t group =
      std::max<size_t>((timeline.points.size() + kMostPoints - 1) / kMostPoints, 1);
  Json points = Json::array(), series = Json::array();
  for (size_t i = 0; i < timeline.points.size(); i += group) points.push_back(timeline.points[i]);
  for (const ReportSeries& one : timeline.series) series.push_back(series_data(one, group));
  return {{"unit", timeline.unit},
          {"of", group},
          {"points", std::move(points)},
          {"series", std::move(series)},
          {"marks", marks_data(timeline, group)}};
}

Json point_data(const CurvePoint& point) {
  return {point.moves, rounded(point.par_step), rounded(point.par)};
}

Json curve_data(const ReportCurve& curve) {
  Json points = Json::array();
  for (const CurvePoint& point : curve.points) points.push_back(point_data(point));
  return {{"points", std::move(points)}, {"plan", point_data(curve.plan)}};
}

}  // namespace

std::string report_data(const Report& report, std::span<const int> layers) {
  const Table<const int64_t> expert_load(report.expert_load, report.num_experts);
  Json ids = Json::array(), tokens = Json::array(), expert = Json::array(), moved = Json::array();
  for (const int layer : layers) {
    const std::span<const int64_t> loads = expert_load[layer];
    ids.push_back(report.layer_ids[layer]);
    tokens.push_back(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
    expert.push_back(over_mean(loads, kExpertParts));
    if (!report.moved.empty()) moved.push_back(report.moved[layer]);
  }
  const TrafficMap traffic = traffic_map(report.states[0]);
  const double mean_traffic = mean_copies(traffic);
  Json states = Json::array();
  for (const ReportState& state : report.states)
    states.push_back(state_data(state, layers, mean_traffic));
  const Json data = {{"ids", std::move(ids)},
                     {"tokens", std::move(tokens)},
                     {"experts", report.num_experts},
                     {"expert_parts", kExpertParts},
                     {"rank_parts", kRankParts},
                     {"nodes", report.node_of_rank},
                     {"expert", std::move(expert)},
                     {"states", std::move(states)},
                     {"traffic",
                      {{"mean", mean_traffic},
                       {"ranks", traffic.ranks_in_row},
                       {"token_bytes", report.token_bytes}}},
                     {"moved", std::move(moved)},
                     {"time", time_data(report.timeline)},
                     {"curve", curve_data(report.curve)}};
  std::string text;
  // "</script" must not end the element early; what is no UTF-8 can't be JSON.
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace trimtab
