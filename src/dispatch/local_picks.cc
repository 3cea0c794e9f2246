// SPDX-License-Identifier: Apache-2.0
#include "dispatch/local_picks.h"

#include <algorithm>

#include "base/cat.h"
#include "dispatch/row_tasks.h"
#include "trimtab/error.h"

namespace trimtab {

LocalPicks::Memory LocalPicks::plan(Carver& carver, const RankShape& shape, int64_t max_rows,
                                    size_t front_bytes) {
  Memory m;
  m.counts = carver.take<int32_t>(shape.num_local());
  m.cursors = carver.take<int32_t>(shape.num_local());
  m.block = RowsAndAnswers::plan(carver, shape, max_rows, front_bytes);
  m.weights = carver.take<float>(max_rows);
  m.order = carver.take<int32_t>(max_rows);
  m.permute = plan_permute(carver, max_rows, shape.hidden);
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
  const int64_t num_rows = assign_rows();
  const ScaledRows rows = m_.block.rows(num_rows);
  for_each_piece(team, source_.rows.x.rows, [&](int64_t first, int64_t last) {
    for (int64_t pick = first * source_.top_k; pick < last * source_.top_k; ++pick) {
      const int32_t row = source_.ids[pick];
      if (row < 0) continue;
      const float weight = source_.weights[pick];
      copy_row(source_.rows, pick / source_.top_k, rows, row, source_.weight_on_input, weight);
      m_.weights[row] = source_.weight_on_input ? 1.0F : weight;
    }
  });
  Tokens tokens{Format::kStandard, rows.x, m_.weights.first(num_rows), m_.counts, 0, rows.scales};
  tokens.picks = {source_.ids, source_.top_k};
  tokens.y = m_.block.answers(num_rows);
  return tokens;
}

WeightedRow LocalPicks::answer_to(int64_t pick, ConstRows y, Left left) const {
  const int32_t row = source_.ids[pick];
  if (row < 0) return {};
  return {y.row_as<float>(row),
          combine_weight(left, source_.weight_on_input, source_.weights[pick])};
}

void LocalPicks::sum(ConstRows y, Left left, Rows parts, Team& team) const {
  if (left == Left::kNothing) return copy_rows(y, parts, team);
  sum_rows(team, parts, source_.top_k, [&](int64_t pick) { return answer_to(pick, y, left); });
}

// Behind the rows if there is room, which spares a pass; else each sum goes where the token's first
// row is, then to its place among the sums.
Rows LocalPicks::sum_in_place(ConstRows y, Left left, Team& team) const {
  const int64_t tokens = source_.rows.x.rows, top_k = source_.top_k;
  const int64_t taken = m_.block.holds(y) ? y.rows : 0;
  if (taken + tokens <= m_.block.most_answers()) {
    const Rows sums = m_.block.answers(taken + tokens).slice(taken, tokens);
    sum(y, left, sums, team);
    return sums;
  }
  const Rows rows = m_.block.answers(y.rows);
  for (int64_t t = 0; t < tokens; ++t) m_.order[t] = source_.ids[t * top_k];
  sum_rows(
      team, tokens, y.cols, top_k, [&](int64_t t) { return rows.row_as<float>(m_.order[t]); },
      [&](int64_t pick) { return answer_to(pick, y, left); });
  permute_rows(rows, m_.order.first(tokens), {}, m_.permute, team);
  return rows.slice(0, tokens);
}

Rows LocalPicks::weigh_in_place(ConstRows y, Left left, Team& team) const {
  size_t count = 0;
  for (const int32_t row : source_.ids) {
    if (row >= 0) m_.order[count++] = row;
  }
  const Rows answers = m_.block.answers(y.rows);
  if (!m_.block.holds(y)) copy_rows(y, answers, team);
  permute_rows(answers, m_.order.first(count),
               left == Left::kSum ? std::span<const float>{} : m_.weights, m_.permute, team);
  return answers;
}

int64_t LocalPicks::rows_of(int64_t first, int64_t last) const {
  const auto picks = source_.ids.subspan(first * source_.top_k, (last - first) * source_.top_k);
  return std::ranges::count_if(picks, [](int32_t row) { return row >= 0; });
}

}  // namespace trimtab
