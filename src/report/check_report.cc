// SPDX-License-Identifier: Apache-2.0
#include "report/check_report.h"

#include <cmath>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

void expect(size_t found, size_t wanted, const std::string& what) {
  if (found != wanted)
    throw InvalidArgument(cat("report: ", what, ": ", found, ", expected ", wanted));
}

void expect_finite(double value, const std::string& what) {
  if (!std::isfinite(value)) throw InvalidArgument(cat("report: ", what, " is ", value));
}

void check_states(const Report& report) {
  if (report.states.empty()) throw InvalidArgument("report: no state");
  const size_t layers = report.layer_ids.size();
  const int ranks = report.states[0].placement.num_ranks();
  expect(report.expert_load.size(), cells(layers, report.num_experts), "expert loads");
  for (const int64_t load : report.expert_load) {
    if (load < 0) throw InvalidArgument(cat("report: an expert load is ", load));
  }
  if (!report.node_of_rank.empty())
    expect(report.node_of_rank.size(), cells(ranks), "nodes of ranks");
  for (const ReportState& state : report.states) {
    expect(state.placement.num_layers(), layers, "layers of " + state.name);
    expect(state.placement.num_experts(), report.num_experts, "experts of " + state.name);
    expect(state.placement.num_ranks(), ranks, "ranks of " + state.name);
    expect(state.rank_load.size(), cells(layers, ranks), "rank loads of " + state.name);
    if (!state.rank_copies.empty())
      expect(state.rank_copies.size(), cells(ranks, ranks), "traffic of " + state.name);
    for (const double copies : state.rank_copies) {
      expect_finite(copies, "traffic of " + state.name);
      if (copies < 0) throw InvalidArgument(cat("report: traffic of ", state.name, " is ", copies));
    }
    for (const double load : state.rank_load) {
      expect_finite(load, "a rank load of " + state.name);
      if (load < 0) throw InvalidArgument(cat("report: a rank load of ", state.name, " is ", load));
    }
  }
}

void check_moves(const Report& report) {
  if (report.moved.empty()) return;
  if (report.states.size() < 2) throw InvalidArgument("report: moves, but no second state");
  expect(report.moved.size(), report.layer_ids.size(), "layers of moves");
  const int slots = report.states[1].placement.num_slots();
  for (const std::vector<int>& layer : report.moved) {
    for (const int slot : layer) {
      if (slot < 0 || slot >= slots)
        throw InvalidArgument(cat("report: a move to slot ", slot, " of ", slots));
    }
  }
}

void check_timeline(const ReportTimeline& timeline) {
  const size_t points = timeline.points.size();
  for (const ReportSeries& series : timeline.series) {
    expect(series.par.size(), points, "points of " + series.name);
    expect(series.worst.size(), points, "worst points of " + series.name);
    if (!series.moves.empty()) expect(series.moves.size(), points, "moves of " + series.name);
    for (const double value : series.par) expect_finite(value, "a PAR of " + series.name);
    for (const double value : series.worst) expect_finite(value, "a worst PAR of " + series.name);
  }
  for (const ReportMark& mark : timeline.marks) {
    if (points == 0 || mark.point < timeline.points.front() ||
        mark.point > timeline.points.back()) {
      throw InvalidArgument(
          cat("report: a mark at ", mark.point, ", outside of the ", points, " points"));
    }
  }
}

void check_curve(const ReportCurve& curve) {
  int64_t last = -1;
  for (const CurvePoint& point : curve.points) {
    if (point.moves <= last)
      throw InvalidArgument(
          cat("report: a point of the curve at ", point.moves, " moves after ", last));
    last = point.moves;
    expect_finite(point.par, "a PAR of the curve");
    expect_finite(point.par_step, "a PAR of the curve");
  }
  expect_finite(curve.plan.par_step, "the PAR of the curve's plan");
}

void check_numbers(const Report& report) {
  for (const ReportHeadline& headline : report.headlines) {
    for (const ReportNumber& number : headline.numbers) {
      expect_finite(number.value, headline.label + ", " + number.label);
    }
  }
  for (const ReportTable& table : report.tables) {
    for (const ReportTable::Row& row : table.rows) {
      expect(row.values.size(), table.columns.size(),
             "columns of " + table.title + ", " + row.name);
      for (const std::optional<double>& value : row.values) {
        if (value) expect_finite(*value, table.title + ", " + row.name);
      }
    }
  }
}

}  // namespace

void check_report(const Report& report) {
  check_states(report);
  check_moves(report);
  check_timeline(report.timeline);
  check_curve(report.curve);
  check_numbers(report);
}

}  // namespace trimtab
