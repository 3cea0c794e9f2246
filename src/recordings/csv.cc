// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "recordings/lines.h"
#include "recordings/readers.h"
#include "recordings/tables.h"

namespace trimtab {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

struct Row {
  int64_t step;
  int layer;
  int expert;
  int64_t count;
  int64_t line;
  size_t at;

  auto key() const { return std::tuple(step, layer, expert, line); }
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

// Sorted by step, layer and expert.
std::vector<Row> read_rows(std::string_view text, const std::string& file) {
  std::vector<Row> rows;
  size_t columns = 0;
  LineReader lines(text, file);
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
    rows.push_back({first == 1 ? lines.number(fields[0], "step", kMax) : 0,
                    static_cast<int>(lines.number(fields[first], "layer", kMaxLayerId)),
                    static_cast<int>(lines.number(fields[first + 1], "expert", kMaxExperts - 1)),
                    lines.number(fields[first + 2], "count", kMax), lines.number(), lines.begin()});
  }
  if (rows.empty()) throw FormatError(file, -1, "csv: no counts");
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.key() < b.key(); });
  return rows;
}

template <class Id>
std::vector<Id> distinct(const std::vector<Row>& rows, Id Row::* id) {
  std::vector<Id> ids;
  for (const Row& row : rows) ids.push_back(row.*id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Recording read_csv_loads(std::string_view text, const std::string& file,
                         const RecordingOptions& options) {
  const std::vector<Row> rows = read_rows(text, file);
  int64_t experts = options.num_experts;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const auto fail = [&](const std::string& what) {
      throw FormatError(file, static_cast<int64_t>(row.at), cat("line ", row.line, ": ", what));
    };
    if (options.num_experts != 0 && row.expert >= options.num_experts) {
      fail(cat("expert ", row.expert, " of ", options.num_experts));
    }
    if (i > 0 && std::tie(rows[i - 1].step, rows[i - 1].layer, rows[i - 1].expert) ==
                     std::tie(row.step, row.layer, row.expert)) {
      fail(cat("step ", row.step, ", layer ", row.layer, ", expert ", row.expert,
               " stands in line ", rows[i - 1].line, " already"));
    }
    experts = std::max<int64_t>(experts, row.expert + 1);
  }
  Recording recording;
  recording.file = file;
  recording.layer_ids = distinct(rows, &Row::layer);
  recording.step_ids = distinct(rows, &Row::step);
  const size_t layers = recording.layer_ids.size();
  check_dense(file, recording.step_ids.size(), layers, experts, rows.size());
  recording.load = {static_cast<int64_t>(recording.step_ids.size()),
                    static_cast<int>(layers),
                    static_cast<int>(experts),
                    {}};
  recording.load.counts.resize(recording.step_ids.size() * layers * static_cast<size_t>(experts));
  const auto index = [](const auto& ids, auto id) {
    return static_cast<size_t>(std::lower_bound(ids.begin(), ids.end(), id) - ids.begin());
  };
  for (const Row& row : rows) {
    const size_t at =
        index(recording.step_ids, row.step) * layers + index(recording.layer_ids, row.layer);
    recording.load.counts[at * static_cast<size_t>(experts) + static_cast<size_t>(row.expert)] =
        row.count;
  }
  return checked(std::move(recording));
}

std::string csv_loads(const Recording& recording) {
  const Load& load = recording.load;
  const bool stepped = load.num_steps > 1 || recording.step_ids[0] != 0;
  std::string out = stepped ? "step,layer,expert,count\n" : "layer,expert,count\n";
  size_t i = 0;
  for (const int64_t step : recording.step_ids) {
    for (const int layer : recording.layer_ids) {
      for (int expert = 0; expert < load.num_experts; ++expert) {
        if (stepped) out += std::to_string(step) + ',';
        out += std::to_string(layer) + ',' + std::to_string(expert) + ',' +
               std::to_string(load.counts[i++]) + '\n';
      }
    }
  }
  return out;
}

}  // namespace trimtab
