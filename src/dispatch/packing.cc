// SPDX-License-Identifier: Apache-2.0
#include "dispatch/packing.h"

#include <algorithm>

#include "dispatch/row_tasks.h"

namespace trimtab {

Packing::Memory Packing::plan(Carver& carver, const RankShape& shape, int64_t records) {
  const int64_t picks = shape.max_tokens * shape.top_k;
  Memory m;
  m.sent_bytes = carver.take<int64_t>(shape.ranks);
  m.counts = carver.take<int32_t>(shape.ranks);
  m.last_token = carver.take<int32_t>(shape.ranks);
  m.cursors = carver.take<int32_t>(shape.ranks);
  m.record_of = carver.take<int32_t>(picks);
  m.first_picks = carver.take<int32_t>(records);
  m.picks_before = carver.take<int32_t>(shape.exact_order ? records + 1 : 0);
  return m;
}

// Numbers the records by destination, then token. Returns how many there are.
int32_t Packing::number_records(std::span<const int32_t> destinations) {
  const std::span<const int32_t> ids = request_->ids;
  const auto num_picks = static_cast<int32_t>(ids.size());
  const auto destination = [&](int32_t pick) {
    return destinations[shape_.rank_of_slot(ids[pick])];
  };
  std::ranges::fill(m_.counts, 0);
  std::ranges::fill(m_.last_token, -1);
  for (int32_t pick = 0; pick < num_picks; ++pick) {
    if (ids[pick] < 0) continue;
    const int32_t token = pick / request_->top_k;
    const int32_t to = destination(pick);
    if (m_.last_token[to] != token) ++m_.counts[to];
    m_.last_token[to] = token;
  }
  int32_t sum = 0;
  for (size_t r = 0; r < m_.counts.size(); ++r) {
    m_.cursors[r] = sum;
    sum += m_.counts[r];
    m_.sent_bytes[r] = m_.counts[r] * records_.bytes();
  }
  std::ranges::fill(m_.last_token, -1);
  for (int32_t pick = 0; pick < num_picks; ++pick) {
    m_.record_of[pick] = -1;
    if (ids[pick] < 0) continue;
    const int32_t token = pick / request_->top_k;
    const int32_t to = destination(pick);
    if (m_.last_token[to] != token) m_.first_picks[m_.cursors[to]++] = pick;
    m_.last_token[to] = token;
    m_.record_of[pick] = m_.cursors[to] - 1;
  }
  return sum;
}

void Packing::write_record(int64_t record) {
  const int32_t first = m_.first_picks[record], top_k = request_->top_k, token = first / top_k;
  std::byte* base = m_.outbox.data();
  copy_row({request_->x, request_->scales}, token, records_.rows(base, record + 1), record, false,
           1.0F);
  Pick* to = records_.tail<Pick>(base, record);
  const Pick* end = to + top_k;
  for (int32_t pick = first; pick < (token + 1) * top_k; ++pick) {
    if (m_.record_of[pick] == record) *to++ = {request_->ids[pick], request_->weights[pick]};
  }
  while (to != end) *to++ = {-1, 0.0F};
}

void Packing::pack(const Request& request, std::span<const int32_t> destinations, Team& team) {
  request_ = &request;
  num_records_ = number_records(destinations);
  for_each_piece(team, num_records_, [this](int64_t first, int64_t last) {
    for (int64_t record = first; record < last; ++record) write_record(record);
  });
}

std::span<const std::byte> Packing::outbox() const {
  return m_.outbox.first(num_records_ * records_.bytes());
}

void Packing::read_picks(std::span<std::byte> inbox, int64_t count, std::span<int32_t> ids,
                         std::span<float> weights, Team& team) const {
  const int64_t top_k = request_->top_k;
  for_each_piece(team, count, [&](int64_t first, int64_t last) {
    for (int64_t record = first; record < last; ++record) {
      const Pick* picks = records_.tail<Pick>(inbox.data(), record);
      for (int64_t k = 0; k < top_k; ++k) {
        ids[record * top_k + k] = picks[k].slot;
        weights[record * top_k + k] = picks[k].weight;
      }
    }
  });
}

void Packing::sum_records(ConstRows results, Rows out, Team& team) const {
  sum_rows(team, out, request_->top_k, [&](int64_t pick) -> WeightedRow {
    const int32_t record = m_.record_of[pick];
    if (record < 0 || m_.first_picks[record] != pick) return {};
    return {results.row_as<float>(record)};
  });
}

void Packing::count_picks_before() const {
  const std::span<int32_t> before = m_.picks_before;
  std::fill_n(before.begin(), num_records_ + 1, 0);
  for (size_t pick = 0; pick < request_->ids.size(); ++pick) {
    if (m_.record_of[pick] >= 0) ++before[m_.record_of[pick] + 1];
  }
  for (int32_t record = 0; record < num_records_; ++record) before[record + 1] += before[record];
}

void Packing::sum_picks(ConstRows results, Rows out, Team& team) const {
  count_picks_before();
  sum_rows(team, out, request_->top_k, [&](int64_t pick) -> WeightedRow {
    const int32_t record = m_.record_of[pick];
    if (record < 0) return {};
    const auto first = m_.first_picks[record];
    int32_t row = m_.picks_before[record];
    for (int32_t before = first; before < pick; ++before) {
      if (m_.record_of[before] == record) ++row;
    }
    return {results.row_as<float>(row)};
  });
}

}  // namespace trimtab
