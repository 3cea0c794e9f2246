// SPDX-License-Identifier: Apache-2.0
// Every rank gets the rows, ids and weights of all ranks, lets its own experts work on the picks that are theirs, sums
// their results per token, and the sums are added over the ranks and scattered to the owners of the tokens. Gathers ids
// and weights (8 bytes a pick), not logits. Picks of other ranks are skipped, never computed and multiplied by 0.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/cat.h"
#include "dispatch/carver.h"
#include "dispatch/row_ops.h"
#include "dispatch/shape.h"
#include "dispatch/staged_exchange.h"
#include "dispatch/standard_dispatcher.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Memory {
  Rows packed;                      // [max_tokens, hidden] x, where its rows do not lie side by side
  Rows all_x;                       // [all tokens, hidden]
  std::span<int32_t> all_ids;       // [all tokens, top_k]; once arranged, the row of each pick in expert order or -1
  std::span<float> all_weights;     // [all tokens, top_k]
  std::span<int64_t> x_bytes;       // [ranks] what each rank sent
  std::span<int64_t> id_bytes;      // [ranks]
  std::span<int64_t> weight_bytes;  // [ranks]
  std::span<int64_t> part_sizes;    // [ranks] floats of each rank's tokens in parts
  std::span<int32_t> local_counts;  // [local experts]
  std::span<int32_t> cursors;       // [local experts]
  Rows rows;                        // [max_rows, hidden]
  std::span<float> row_weights;     // [max_rows]
  Rows parts;                       // f32 [all tokens, hidden] this rank's experts' part of every token
  Rows sums;                        // f32 [max_tokens, hidden]
};

Memory plan_memory(Carver& carver, const RankShape& shape) {
  const int64_t tokens = shape.all_tokens();
  const int64_t picks = shape.all_picks();
  Memory m;
  m.packed = carver.take_rows(shape.max_tokens, shape.hidden, shape.dtype);
  m.all_x = carver.take_rows(tokens, shape.hidden, shape.dtype);
  m.all_ids = carver.take<int32_t>(picks);
  m.all_weights = carver.take<float>(picks);
  m.x_bytes = carver.take<int64_t>(shape.ranks);
  m.id_bytes = carver.take<int64_t>(shape.ranks);
  m.weight_bytes = carver.take<int64_t>(shape.ranks);
  m.part_sizes = carver.take<int64_t>(shape.ranks);
  m.local_counts = carver.take<int32_t>(shape.num_local());
  m.cursors = carver.take<int32_t>(shape.num_local());
  m.rows = carver.take_rows(shape.max_rows(), shape.hidden, shape.dtype);
  m.row_weights = carver.take<float>(shape.max_rows());
  m.parts = carver.take_rows(tokens, shape.hidden, DType::kF32);
  m.sums = carver.take_rows(shape.max_tokens, shape.hidden, DType::kF32);
  return m;
}

std::span<const std::byte> bytes_of(ConstRows rows) {
  return {rows.data, static_cast<size_t>(rows.rows) * rows.row_bytes()};
}
std::span<float> floats_of(Rows rows) {
  return {reinterpret_cast<float*>(rows.data), static_cast<size_t>(rows.rows * rows.cols)};
}

class AllGatherExchange final : public StagedExchange {
 public:
  static constexpr const char* kName = "all_gather";
  static Memory plan(Carver& carver, const RankShape& shape) { return plan_memory(carver, shape); }
  static void check(const Lane&) {}  // collectives are all it needs

  AllGatherExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : StagedExchange(shape, request, lane), m_(memory) {
    const std::span<std::byte> all_x(m_.all_x.data, static_cast<size_t>(m_.all_x.rows) * m_.all_x.row_bytes());
    x_ = comm_.all_gather_v(bytes_of(side_by_side(request.x)), all_x, m_.x_bytes);
    ids_ = comm_.all_gather_v(std::as_bytes(request.ids), std::as_writable_bytes(m_.all_ids), m_.id_bytes);
    weights_ =
        comm_.all_gather_v(std::as_bytes(request.weights), std::as_writable_bytes(m_.all_weights), m_.weight_bytes);
  }

 private:
  bool reached(Stage stage, bool block) override;
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override;

  ConstRows side_by_side(ConstRows x) const;
  void measure_parts();
  int64_t assign_rows();

  const Memory m_;
  Pending x_, ids_, weights_, sums_;
  int64_t num_tokens_ = 0;  // of all ranks
};

ConstRows AllGatherExchange::side_by_side(ConstRows x) const {
  if (x.stride == x.cols || x.rows <= 1) return x;
  for (int64_t t = 0; t < x.rows; ++t) std::memcpy(m_.packed.row(t), x.row(t), x.row_bytes());
  return m_.packed.slice(0, x.rows);
}

bool AllGatherExchange::reached(Stage stage, bool block) {
  const auto done = [block](Pending& pending) { return block ? (pending.wait(), true) : pending.done(); };
  const auto released = [block](Pending& pending) {
    return block ? (pending.wait_released(), true) : pending.released();
  };
  switch (stage) {
    case Stage::kArrived:
      return done(x_) && done(ids_) && done(weights_);
    case Stage::kReturned:
      return done(sums_);
    case Stage::kDrained:
      return released(x_) && released(ids_) && released(weights_) && released(sums_);
  }
  return false;
}

// How many tokens each rank has sent. Throws InvalidArgument when a rank was called with another top_k or hidden.
void AllGatherExchange::measure_parts() {
  const auto row_bytes = static_cast<int64_t>(m_.all_x.row_bytes());
  const int64_t pick_bytes = request_.top_k * static_cast<int64_t>(sizeof(int32_t));
  num_tokens_ = 0;
  for (size_t r = 0; r < m_.x_bytes.size(); ++r) {
    const int64_t tokens = m_.x_bytes[r] / row_bytes;
    if (m_.x_bytes[r] % row_bytes != 0 || m_.id_bytes[r] != tokens * pick_bytes ||
        m_.weight_bytes[r] != m_.id_bytes[r]) {
      throw InvalidArgument(cat("all_gather dispatch: rank ", r, " sent ", m_.x_bytes[r], " bytes of x and ",
                                m_.id_bytes[r], " of ids, which does not fit hidden ", shape_.hidden, " and top_k ",
                                request_.top_k));
    }
    m_.part_sizes[r] = tokens * shape_.hidden;
    num_tokens_ += tokens;
  }
}

// Counting sort of all ranks' picks of this rank's experts; leaves in all_ids the row of each, -1 for the picks of
// others. Tokens stand by source rank, so rows come out by expert, source rank, token and pick. Returns the rows.
int64_t AllGatherExchange::assign_rows() {
  const std::span<int32_t> ids = m_.all_ids.first(static_cast<size_t>(num_tokens_ * request_.top_k));
  const int32_t first = shape_.first_slot();
  const int32_t last = first + shape_.num_local();
  std::ranges::fill(m_.local_counts, 0);
  for (const int32_t id : ids) {
    if (first <= id && id < last) ++m_.local_counts[static_cast<size_t>(id - first)];
  }
  int32_t rows = 0;
  for (size_t slot = 0; slot < m_.cursors.size(); ++slot) {
    m_.cursors[slot] = rows;
    rows += m_.local_counts[slot];
  }
  for (int32_t& id : ids) id = first <= id && id < last ? m_.cursors[static_cast<size_t>(id - first)]++ : -1;
  return rows;
}

Tokens AllGatherExchange::arrange() {
  measure_parts();
  const int64_t rows = assign_rows();
  for_each_piece(team_, num_tokens_, [this](int64_t first, int64_t last) {
    for (int64_t pick = first * request_.top_k; pick < last * request_.top_k; ++pick) {
      const int32_t row = m_.all_ids[static_cast<size_t>(pick)];
      if (row < 0) continue;
      const float weight = m_.all_weights[static_cast<size_t>(pick)];
      copy_row(m_.all_x, pick / request_.top_k, m_.rows, row, request_.weight_on_input, weight);
      m_.row_weights[static_cast<size_t>(row)] = request_.weight_on_input ? 1.0F : weight;
    }
  });
  return {Format::kStandard, m_.rows.slice(0, rows), m_.row_weights.first(static_cast<size_t>(rows)), m_.local_counts,
          0};
}

void AllGatherExchange::publish(ConstRows y, Left left) {
  for_each_piece(team_, num_tokens_, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* part = m_.parts.row_as<float>(t);
      std::fill_n(part, m_.parts.cols, 0.0F);
      for (int64_t pick = t * request_.top_k; pick < (t + 1) * request_.top_k; ++pick) {
        const int32_t row = m_.all_ids[static_cast<size_t>(pick)];
        if (row < 0) continue;
        add_scaled(part, y.row_as<float>(row), m_.parts.cols,
                   combine_weight(left, request_.weight_on_input, m_.all_weights[static_cast<size_t>(pick)]));
      }
    }
  });
  sums_ = comm_.reduce_scatter_v(floats_of(m_.parts.slice(0, num_tokens_)), m_.part_sizes,
                                 floats_of(m_.sums.slice(0, request_.x.rows)));
}

void AllGatherExchange::combine(Rows out) {
  for_each_piece(team_, out.rows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) std::memcpy(out.row(t), m_.sums.row(t), out.row_bytes());
  });
}

}  // namespace

std::unique_ptr<Dispatcher> make_all_gather_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<StandardDispatcher<AllGatherExchange>>(shape, rank);
}

}  // namespace trimtab
