// SPDX-License-Identifier: Apache-2.0
// Loads as comma-separated values, one cell a line.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/line_reader.h"
#include "recordings/readers.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

struct Row {
  int64_t step;
  int layer;
  int expert;
  int64_t count;
  int64_t line;
  int64_t at;  // the byte of the file at which the line begins

  auto cell() const { return std::tuple(step, layer, expert); }
};

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == line.npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

bool is_header(std::string_view line) {
  line = line.substr(0, line.find_last_not_of(" \t") + 1);
  const auto names = {"layer,expert,count", "layer_id,expert_id,count", "step,layer,expert,count",
                      "step,layer_id,expert_id,count"};
  return std::find(names.begin(), names.end(), line) != names.end();
}

// The rows, sorted by step, layer and expert.
std::vector<Row> read_rows(const Content& content) {
  std::vector<Row> rows;
  size_t columns = 0;
  LineReader lines(content.text(), content.file());
  while (lines.next()) {
    if (lines.blank()) continue;
    const std::vector<std::string_view> fields = split(lines.line());
    if (columns == 0) {
      columns = fields.size();
      if (columns != 3 && columns != 4)
        lines.fail("layer,expert,count or step,layer,expert,count expected");
      if (is_header(lines.line())) continue;
    }
    if (fields.size() != columns)
      lines.fail(cat(fields.size(), " columns; the first line has ", columns));
    const size_t first = columns - 3;
    rows.push_back({first == 1 ? lines.whole_number(fields[0], "step", kMaxCount) : 0,
                    lines.id(fields[first], "layer", kMaxLayerId),
                    lines.id(fields[first + 1], "expert", kMaxExpertId),
                    lines.whole_number(fields[first + 2], "count", kMaxCount), lines.number(),
                    lines.begin()});
  }
  if (rows.empty()) throw FormatError(content.file(), -1, "csv: no counts");
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tuple(a.cell(), a.line) < std::tuple(b.cell(), b.line);
  });
  return rows;
}

// Throws when an expert is out of range or a cell comes twice. Returns the number of experts.
int64_t check_rows(const std::string& file, const std::vector<Row>& rows, int num_experts) {
  int64_t experts = num_experts;
  const Row* before = nullptr;
  for (const Row& row : rows) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(file, row.at, cat("line ", row.line, ": ", what));
    };
    if (num_experts != 0 && row.expert >= num_experts)
      fail(cat("expert ", row.expert, " of ", num_experts));
    if (before != nullptr && before->cell() == row.cell()) {
      fail(cat("step ", row.step, ", layer ", row.layer, ", expert ", row.expert,
               " stands in line ", before->line, " already"));
    }
    experts = std::max<int64_t>(experts, row.expert + 1);
    before = &row;
  }
  return experts;
}

template <class Id>
std::vector<Id> distinct(const std::vector<Row>& rows, Id Row::* id) {
  std::vector<Id> ids;
  for (const Row& row : rows) ids.push_back(row.*id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// The place of an id among ascending ones.
template <class Id>
int64_t index_of(const std::vector<Id>& ids, Id id) {
  return std::lower_bound(ids.begin(), ids.end(), id) - ids.begin();
}

// Throws when the file seems to be cut off between two lines: when its rows are the first cells of
// [steps, layers, experts], the others are absent, and zeros are listed. A writer that lists zeros
// leaves no cell out.
void check_not_cut(const Recording& recording, const std::vector<Row>& rows) {
  const Row& last = rows.back();
  int experts = 0;
  bool lists_zeros = false;
  for (const Row& row : rows) {
    experts = std::max(experts, row.expert + 1);
    lists_zeros |= row.count == 0;
  }
  const int64_t layers = std::ssize(recording.layer_ids);
  const int64_t last_row =
      index_of(recording.step_ids, last.step) * layers + index_of(recording.layer_ids, last.layer);
  const bool has_first_cells = last_row * experts + last.expert + 1 == std::ssize(rows);
  const bool has_all_cells =
      std::cmp_equal(cells(recording.step_ids.size(), layers, experts), rows.size());
  if (lists_zeros && has_first_cells && !has_all_cells) {
    throw FormatError(recording.file, last.at,
                      cat("line ", last.line, ": the file ends with step ", last.step, ", layer ",
                          last.layer, ", expert ", last.expert, " of ", experts,
                          " although it lists zeros; the rest must have been cut off"));
  }
}

}  // namespace

Recording read_csv_loads(const Content& content, const RecordingOptions& options) {
  const std::vector<Row> rows = read_rows(content);
  const int64_t experts = check_rows(content.file(), rows, options.num_experts);
  Recording recording;
  recording.file = content.file();
  recording.layer_ids = distinct(rows, &Row::layer);
  recording.step_ids = distinct(rows, &Row::step);
  const int64_t layers = std::ssize(recording.layer_ids);
  const int64_t steps = std::ssize(recording.step_ids);
  check_dense(content.file(), steps, layers, experts, std::ssize(rows));
  check_not_cut(recording, rows);
  recording.load = zero_load(steps, layers, experts);
  const Table counts(recording.load.counts, experts);
  for (const Row& row : rows) {
    const int64_t step = index_of(recording.step_ids, row.step);
    counts(step * layers + index_of(recording.layer_ids, row.layer), row.expert) = row.count;
  }
  return checked(std::move(recording));
}

std::string csv_loads(const Recording& recording) {
  const Load& load = recording.load;
  const bool stepped = load.num_steps > 1 || recording.step_ids[0] != 0;
  std::string out = stepped ? "step,layer,expert,count\n" : "layer,expert,count\n";
  auto count = load.counts.begin();
  for (const int64_t step : recording.step_ids) {
    for (const int layer : recording.layer_ids) {
      for (int expert = 0; expert < load.num_experts; ++expert) {
        if (stepped) out += std::to_string(step) + ',';
        out += std::to_string(layer) + ',' + std::to_string(expert) + ',' +
               std::to_string(*count++) + '\n';
      }
    }
  }
  return out;
}

}  // namespace trimtab
