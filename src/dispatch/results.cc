// SPDX-License-Identifier: Apache-2.0
#include "dispatch/results.h"

#include <algorithm>
#include <numeric>

#include "base/quantize_rows.h"
#include "base/row_tasks.h"
#include "dispatch/staged_exchange.h"

namespace trimtab {
namespace {

int64_t sum(std::span<const int64_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

}  // namespace

Results::Memory Results::plan(Carver& carver, const RankShape& shape, int64_t most_made,
                              int64_t most_arriving, int64_t before_bytes) {
  const bool in_f32 = shape.results == DType::kF32;
  const int64_t record = in_f32 ? 0 : Records(shape.hidden, shape.results).bytes();
  Memory m;
  m.outbox = carver.take<std::byte>(most_made * record);
  m.sent_bytes = carver.take<int64_t>(shape.ranks);
  m.inbox = carver.take<std::byte>(most_arriving * record);
  m.arrived_bytes = carver.take<int64_t>(shape.ranks);
  const auto arrived = shape_bytes(DType::kF32, most_arriving, shape.hidden);
  const auto shared = carver.take<std::byte>(std::max<int64_t>(arrived, before_bytes));
  m.arrived = Rows(shared.data(), most_arriving, shape.hidden, shape.hidden, DType::kF32);
  m.before = shared.first(before_bytes);
  return m;
}

void Results::send(ConstRows made, Pending& before, Team& team) {
  made_ = made;
  before_ = &before;
  team_ = &team;
  start(false);
}

bool Results::start(bool block) {
  if (started_) return true;
  if (!trimtab::released(*before_, block)) return false;
  started_ = true;
  if (in_f32_) {
    pending_ =
        comm_.all_to_all_v(bytes_of(made_), m_.sent_bytes, bytes_of(m_.arrived), m_.arrived_bytes);
    return true;
  }
  const ScaledRows out = records_.rows(m_.outbox.data(), made_.rows);
  for_each_piece(*team_, made_.rows, [&](int64_t first, int64_t last) {
    const ScaledRows piece = out.slice(first, last - first);
    encode_rows(made_.slice(first, last - first), piece.x, piece.scales);
  });
  pending_ = comm_.all_to_all_v(m_.outbox.first(made_.rows * records_.bytes()), m_.sent_bytes,
                                m_.inbox, m_.arrived_bytes);
  return true;
}

bool Results::done(bool block) {
  return start(block) && trimtab::done(pending_, block);
}

bool Results::released(bool block) {
  return trimtab::released(pending_, block);
}

ConstRows Results::arrived(Team& team) const {
  if (in_f32_) return m_.arrived;
  const Rows rows = m_.arrived.slice(0, sum(m_.arrived_bytes) / records_.bytes());
  const ScaledRows in = records_.rows(m_.inbox.data(), rows.rows);
  for_each_piece(team, rows.rows, [&](int64_t first, int64_t last) {
    const ScaledRows piece = in.slice(first, last - first);
    decode_rows(piece.x, piece.scales, rows.slice(first, last - first));
  });
  return rows;
}

}  // namespace trimtab
