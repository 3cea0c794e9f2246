// SPDX-License-Identifier: Apache-2.0
#include "dispatch/local_picks.h"

#include <algorithm>

#include "base/cat.h"
#include "dispatch/row_tasks.h"
#include "trimtab/error.h"

namespace trimtab {

LocalPicks::Memory LocalPicks::plan(Carver& carver, const RankShape& shape, int64_t max_rows) {
  Memory m;
  m.counts = carver.take<int32_t>(shape.num_local());
  m.cursors = carver.take<int32_t>(shape.num_local());
  m.rows = take_scaled_rows(carver, max_rows, shape);
  m.weights = carver.take<float>(max_rows);
  m.order = carver.take<int32_t>(max_rows);
  return m;
}

// Counting sort by expert that keeps the order of the tokens. Returns the rows.
int64_t LocalPicks::assign_rows() {
  const int32_t first = shape_.first_slot();
  const int32_t last = first + shape_.num_local();
  std::ranges::fill(m_.counts, 0);
  for (const int32_t id : source_.ids) {
    if (first <= id && id < last) {
      ++m_.counts[id - first];
    } else if (id != -1 && (source_.all_here || id < 0 || id >= shape_.num_slots())) {
      throw InvalidArgument(cat(shape_.dispatcher_name, " dispatch: a pick of slot ", id,
                                " came to rank ", shape_.rank, ", which has ", first, " to ",
                                last - 1, " of ", shape_.num_slots()));
    }
  }
  int32_t rows = 0;
  for (size_t slot = 0; slot < m_.cursors.size(); ++slot) {
    m_.cursors[slot] = rows;
    rows += m_.counts[slot];
  }
  for (int32_t& id : source_.ids) id = first <= id && id < last ? m_.cursors[id - first]++ : -1;
  return rows;
}

Tokens LocalPicks::arrange(const Source& source, Team& team) {
  source_ = source;
  const int64_t rows = assign_rows();
  for_each_piece(team, source_.rows.x.rows, [this](int64_t first, int64_t last) {
    for (int64_t pick = first * source_.top_k; pick < last * source_.top_k; ++pick) {
      const int32_t row = source_.ids[pick];
      if (row < 0) continue;
      const float weight = source_.weights[pick];
      copy_row(source_.rows, pick / source_.top_k, m_.rows, row, source_.weight_on_input, weight);
      m_.weights[row] = source_.weight_on_input ? 1.0F : weight;
    }
  });
  const ScaledRows used = m_.rows.slice(0, rows);
  Tokens tokens{Format::kStandard, used.x, m_.weights.first(rows), m_.counts, 0, used.scales};
  tokens.picks = {source_.ids, source_.top_k};
  return tokens;
}

void LocalPicks::sum(ConstRows y, Left left, Rows parts, Team& team) const {
  if (left == Left::kNothing) return copy_rows(y, parts, team);
  sum_rows(team, parts, source_.top_k, [&](int64_t pick) -> WeightedRow {
    const int32_t row = source_.ids[pick];
    if (row < 0) return {};
    return {y.row_as<float>(row),
            combine_weight(left, source_.weight_on_input, source_.weights[pick])};
  });
}

void LocalPicks::weigh(ConstRows y, Left left, Rows answers, Team& team) const {
  size_t count = 0;
  for (const int32_t row : source_.ids) {
    if (row >= 0) m_.order[count++] = row;
  }
  for_each_piece(team, answers.rows, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int32_t row = m_.order[i];
      scale_row(y.row_as<float>(row), answers.row_as<float>(i), y.cols,
                left == Left::kSum ? 1.0F : m_.weights[row]);
    }
  });
}

int64_t LocalPicks::rows_of(int64_t first, int64_t last) const {
  const auto picks = source_.ids.subspan(first * source_.top_k, (last - first) * source_.top_k);
  return std::ranges::count_if(picks, [](int32_t row) { return row >= 0; });
}

}  // namespace trimtab
