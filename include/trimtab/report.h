// SPDX-License-Identifier: Apache-2.0
// A report: how level the ranks are, before and after, as one HTML page that needs nothing else -
// no network, no other file - and that a browser shows light or dark. A Report is plain data that
// whoever has something to show fills: a plan, a recording, a live run. The page has, in this order
// and as far as there is data for it: headline numbers, rank bars, heat maps of ranks and of
// experts, the placement, traffic from rank to rank, PAR over time, PAR against moves, moves,
// tables, and how each number is defined. All functions here may run at the same time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"

namespace trimtab {

// All text is UTF-8 and may hold any character; it is escaped.
struct ReportText {
  std::string name;
  std::string text;
};

struct ReportNumber {
  std::string key;    // its name where a machine reads it (the command's --json)
  std::string label;  // e.g. "before", "after", "bound"
  double value = 0;
  int decimals = 4;
  bool is_limit = false;  // a bound or a floor, what the others are held against
};

// Numbers that are read together, e.g. a PAR before and after, and its bound.
struct ReportHeadline {
  std::string label;
  std::string about;    // what the numbers measure; may be empty
  bool is_par = false;  // drawn on a scale that starts at 1
  std::vector<ReportNumber> numbers;
};

// One placement and the rank loads under it.
struct ReportState {
  std::string name;  // e.g. "before"
  Placement placement;
  std::vector<double> rank_load;  // [layers, ranks] tokens; states may be of different ones
  // [ranks, ranks] copies of tokens that a step sends from rank to rank, in all layers; empty: they
  // are not known.
  std::vector<double> rank_copies = {};
};

struct ReportSeries {
  std::string name;
  std::vector<double> par;    // [points] mean over the layers
  std::vector<double> worst;  // [points] of the worst layer and step
  // [points] experts that moved right before a point, over all layers; -1: nothing was planned
  // there. Empty: never.
  std::vector<int64_t> moves;
};

// Something that happened at a point.
struct ReportMark {
  int64_t point = 0;
  std::string text;
  bool is_trouble = false;  // stands out
};

struct ReportTimeline {
  std::string unit;             // what a point is: "step", "window"
  std::vector<int64_t> points;  // the number of each, ascending
  std::vector<ReportSeries> series;
  std::vector<ReportMark> marks = {};  // each between the first point and the last
};

// PAR against moves: what plans with fewer or more moves reach.
struct ReportCurve {
  std::vector<CurvePoint> points;  // by ascending moves; empty: there is no curve
  CurvePoint plan;                 // the plan of the page
};

struct ReportTable {
  struct Column {
    std::string key, label;
    int decimals = 4;
  };
  struct Row {
    std::string name;
    std::vector<std::optional<double>> values;  // [columns]; none: not known
  };
  std::string title;
  std::string row_label;  // heading of the rows' names
  std::vector<Column> columns;
  std::vector<Row> rows;
};

struct Report {
  std::string title;
  std::string made_by;            // program and version
  std::vector<ReportText> facts;  // what was measured, with what
  std::vector<ReportHeadline> headlines;
  std::vector<int> layer_ids;  // [layers] the numbers that the layers are shown with
  int num_experts = 0;         // in a layer
  // [layers, experts] tokens; where all are 0, only the placement is drawn, without loads.
  std::vector<int64_t> expert_load;
  std::vector<int32_t> node_of_rank;  // [ranks]; empty: all on one node
  int64_t token_bytes = 0;            // of one copy of a token; 0: not known
  std::string split;  // rule that shares tokens out over replicas; empty: each gets as many
  // One or more with the same ranks; the others are compared with the first.
  std::vector<ReportState> states;
  // [layers] slots of the second state whose weights must come from another rank.
  std::vector<std::vector<int>> moved;
  ReportTimeline timeline;  // may be empty
  ReportCurve curve;        // may be empty
  std::vector<ReportTable> tables;
  std::vector<ReportText> definitions;  // beside those of the drawings
};

// The tokens of each expert over all steps: [layers, experts], as in Report.
std::vector<int64_t> expert_load_of(const Load& load);
// The rank loads under a placement, every expert's tokens shared equally among its replicas. The
// load's layers and experts must be the placement's, else InvalidArgument; here and below.
ReportState report_state(std::string name, const Placement& placement,
                         std::span<const int64_t> expert_load);
// PAR of every step under a placement.
ReportSeries report_series(std::string name, const Placement& placement, const Load& load);

// The definition of the PAR of a step, which all pages show.
ReportText par_of_a_step();

// A plan, and what it was made from.
struct PlanStory {
  const Load& load;
  const Placement& current;
  const Plan& plan;
  std::vector<int> layer_ids;     // [layers]
  std::vector<int64_t> step_ids;  // [steps]
  std::vector<int32_t> node_of_rank = {};
};
// Makes a report on a plan: before and after, moves, a table of the layers. Title and facts are
// left to the caller.
Report plan_report(PlanStory story);

// Makes the page. The same report gives the same bytes. Long timelines are drawn in coarser points,
// and of very large models the most uneven layers, so that the page stays under 2 MB; the page says
// so. Throws InvalidArgument, with the values, when sizes do not fit each other or a number is not
// finite.
std::string report_html(const Report& report);
// Writes the page to a new file, which replaces path when complete. Throws as above, and Error on
// I/O failure.
void write_report(const std::string& path, const Report& report);

}  // namespace trimtab
