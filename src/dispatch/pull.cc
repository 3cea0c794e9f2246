// SPDX-License-Identifier: Apache-2.0
// Ranks that share memory: nothing is sent. A rank posts where its rows are and how its picks are spread over the
// experts; owners copy the rows from there straight into expert order, and sources read the results in place. Where a
// source's rows stand at an owner follows from the counts of all ranks, so no index travels back.
//
// Posts of one exchange: 1 the offer (x, picks, counts), 2 the answer (y), 3 nothing: this rank has read all answers.
#include <algorithm>
#include <memory>

#include "dispatch/carver.h"
#include "dispatch/row_ops.h"
#include "dispatch/shape.h"
#include "dispatch/share.h"
#include "dispatch/staged_exchange.h"
#include "dispatch/standard_dispatcher.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Post 1.
struct Offer {
  ConstRows x;                      // [tokens, hidden]
  std::span<const float> weights;   // [tokens, top_k]
  std::span<const int32_t> picks;   // token * top_k + k of every pick with an expert, by expert, then in order
  std::span<const int32_t> counts;  // [slots] picks of each expert
  int top_k = 0;
  bool weight_on_input = false;
};

// Post 2.
struct Answer {
  ConstRows y;  // as the owner's Tokens::x
  Left left = Left::kWeightAndSum;
};

// The rows that one of this rank's experts gets from one source.
struct Segment {
  int32_t row = 0;   // first row in expert order
  int32_t pick = 0;  // first of the source's picks
};

struct Memory {
  // Read by peers until the exchange is drained, so they are not members of it: its destructor waits for readers.
  Offer* offer = nullptr;
  Answer* answer = nullptr;
  Rows x;                            // [max_tokens, hidden] for Offer::x where peers can't read the caller's
  std::span<float> weights;          // [max_tokens * top_k] the same for Offer::weights
  std::span<int32_t> picks;          // [max_tokens * top_k] Offer::picks
  std::span<int32_t> counts;         // [slots] Offer::counts
  std::span<int32_t> starts;         // [slots] where this rank's rows begin in the owner's order; first a cursor
  std::span<int32_t> places;         // [max_tokens * top_k] row of each pick in the owner's order
  std::span<const Offer*> offers;    // [ranks]
  std::span<const Answer*> answers;  // [ranks]
  std::span<int32_t> cursors;        // [ranks]
  std::span<Segment> segments;       // [local experts, ranks] and one more, for the end
  std::span<int32_t> local_counts;   // [local experts]
  Rows rows;                         // [max_rows, hidden]
  std::span<float> row_weights;      // [max_rows]
};

Memory plan_memory(Carver& carver, const RankShape& shape) {
  const int64_t picks = shape.max_tokens * shape.top_k;
  Memory m;
  m.offer = carver.take<Offer>(1).data();
  m.answer = carver.take<Answer>(1).data();
  m.x = carver.take_rows(shape.max_tokens, shape.hidden, shape.dtype);
  m.weights = carver.take<float>(picks);
  m.picks = carver.take<int32_t>(picks);
  m.counts = carver.take<int32_t>(shape.num_slots());
  m.starts = carver.take<int32_t>(shape.num_slots());
  m.places = carver.take<int32_t>(picks);
  m.offers = carver.take<const Offer*>(shape.ranks);
  m.answers = carver.take<const Answer*>(shape.ranks);
  m.cursors = carver.take<int32_t>(shape.ranks);
  m.segments = carver.take<Segment>(int64_t{shape.num_local()} * shape.ranks + 1);
  m.local_counts = carver.take<int32_t>(shape.num_local());
  m.rows = carver.take_rows(shape.max_rows(), shape.hidden, shape.dtype);
  m.row_weights = carver.take<float>(shape.max_rows());
  return m;
}

class PullExchange final : public StagedExchange {
 public:
  static constexpr const char* kName = "pull";
  static Memory plan(Carver& carver, const RankShape& shape) { return plan_memory(carver, shape); }
  static void check(const Lane& lane) {
    if (lane.comm.board() == nullptr) {
      throw InvalidArgument("pull needs ranks that share memory, but this Communicator has no board; use all_gather");
    }
  }

  PullExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : StagedExchange(shape, request, lane), board_(*lane.comm.board()), m_(memory) {
    const size_t num_picks = sort_picks();
    std::construct_at(m_.offer, Offer{share(board_, request.x, m_.x), share(board_, request.weights, m_.weights),
                                      m_.picks.first(num_picks), m_.counts, request.top_k, request.weight_on_input});
    first_post_ = board_.post(m_.offer);
  }

 private:
  bool reached(Stage stage, bool block) override {
    const auto post = first_post_ + static_cast<uint64_t>(stage);
    if (!block) return board_.posted(post);
    static constexpr const char* kNames[] = {"pull dispatch", "pull combine", "pull drain"};
    board_.wait_posted(post, kNames[static_cast<size_t>(stage)]);
    return true;
  }
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override;

  size_t sort_picks();
  int64_t lay_out_segments();
  void copy_rows(int64_t first, int64_t last);
  void find_places();

  Board& board_;
  const Memory m_;
  uint64_t first_post_ = 0;
};

// Counting sort of the picks by expert; keeps their order. Returns how many have an expert.
size_t PullExchange::sort_picks() {
  std::ranges::fill(m_.counts, 0);
  for (const int32_t id : request_.ids) {
    if (id >= 0) ++m_.counts[static_cast<size_t>(id)];
  }
  int32_t sum = 0;
  for (size_t slot = 0; slot < m_.counts.size(); ++slot) {
    m_.starts[slot] = sum;
    sum += m_.counts[slot];
  }
  for (size_t i = 0; i < request_.ids.size(); ++i) {
    const int32_t id = request_.ids[i];
    if (id >= 0) m_.picks[static_cast<size_t>(m_.starts[static_cast<size_t>(id)]++)] = static_cast<int32_t>(i);
  }
  return static_cast<size_t>(sum);
}

Tokens PullExchange::arrange() {
  const Board::Reading reading(board_);
  for (int s = 0; s < shape_.ranks; ++s) {
    m_.offers[static_cast<size_t>(s)] = static_cast<const Offer*>(board_.item(s, first_post_));
  }
  const int64_t rows = lay_out_segments();
  for_each_piece(team_, rows, [this](int64_t first, int64_t last) { copy_rows(first, last); });
  return {Format::kStandard, m_.rows.slice(0, rows), m_.row_weights.first(static_cast<size_t>(rows)), m_.local_counts,
          0};
}

// Walks every owner's order (expert, source) over the counts of all ranks: fills the segments of this owner, and the
// starts of this source at all owners. Returns the rows of this owner.
int64_t PullExchange::lay_out_segments() {
  const auto ranks = static_cast<size_t>(shape_.ranks);
  const auto self = static_cast<size_t>(shape_.rank);
  std::ranges::fill(m_.cursors, 0);
  int32_t own_rows = 0;
  for (size_t owner = 0; owner < ranks; ++owner) {
    const auto first = static_cast<size_t>(shape_.first_slots[owner]);
    const auto last = static_cast<size_t>(shape_.first_slots[owner + 1]);
    int32_t row = 0;
    for (size_t slot = first; slot < last; ++slot) {
      const int32_t slot_row = row;
      for (size_t s = 0; s < ranks; ++s) {
        if (owner == self) m_.segments[(slot - first) * ranks + s] = {row, m_.cursors[s]};
        if (s == self) m_.starts[slot] = row;
        const int32_t count = m_.offers[s]->counts[slot];
        row += count;
        m_.cursors[s] += count;
      }
      if (owner == self) m_.local_counts[slot - first] = row - slot_row;
    }
    if (owner == self) own_rows = row;
  }
  m_.segments.back() = {own_rows, 0};
  return own_rows;
}

void PullExchange::copy_rows(int64_t first, int64_t last) {
  const auto ranks = static_cast<size_t>(shape_.ranks);
  // The last segment that begins at or before the row: empty ones share their begin with the one that follows.
  const auto after = std::ranges::upper_bound(m_.segments, first, {}, [](const Segment& s) { return int64_t{s.row}; });
  auto segment = static_cast<size_t>(after - m_.segments.begin()) - 1;
  for (int64_t row = first; row < last; ++row) {
    while (m_.segments[segment + 1].row <= row) ++segment;
    const Segment& from = m_.segments[segment];
    const Offer& offer = *m_.offers[segment % ranks];
    const auto pick = static_cast<size_t>(offer.picks[static_cast<size_t>(from.pick + row - from.row)]);
    const float weight = offer.weights[pick];
    copy_row(offer.x, static_cast<int64_t>(pick) / offer.top_k, m_.rows, row, offer.weight_on_input, weight);
    m_.row_weights[static_cast<size_t>(row)] = offer.weight_on_input ? 1.0F : weight;
  }
}

void PullExchange::publish(ConstRows y, Left left) {
  if (!board_.shares(y.data, extent_bytes(y))) {
    throw InvalidArgument("send_back: y must lie in memory that peers can read (Communicator::allocate)");
  }
  board_.post(std::construct_at(m_.answer, Answer{y, left}));
}

void PullExchange::find_places() {
  size_t i = 0;
  for (size_t slot = 0; slot < m_.counts.size(); ++slot) {
    for (int32_t n = 0; n < m_.counts[slot]; ++n, ++i) {
      m_.places[static_cast<size_t>(m_.offer->picks[i])] = m_.starts[slot] + n;
    }
  }
}

void PullExchange::combine(Rows out) {
  find_places();
  {
    const Board::Reading reading(board_);
    for (int r = 0; r < shape_.ranks; ++r) {
      m_.answers[static_cast<size_t>(r)] = static_cast<const Answer*>(board_.item(r, first_post_ + 1));
    }
    for_each_piece(team_, out.rows, [&](int64_t first, int64_t last) {
      const auto top_k = static_cast<size_t>(request_.top_k);
      for (int64_t t = first; t < last; ++t) {
        float* sum = out.row_as<float>(t);
        std::fill_n(sum, out.cols, 0.0F);
        for (size_t i = static_cast<size_t>(t) * top_k; i < (static_cast<size_t>(t) + 1) * top_k; ++i) {
          const int32_t id = request_.ids[i];
          if (id < 0) continue;
          const Answer& answer = *m_.answers[static_cast<size_t>(shape_.rank_of_slot(id))];
          add_scaled(sum, answer.y.row_as<float>(m_.places[i]), out.cols,
                     combine_weight(answer.left, request_.weight_on_input, request_.weights[i]));
        }
      }
    });
  }
  board_.post(nullptr);
}

}  // namespace

std::unique_ptr<Dispatcher> make_pull_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<StandardDispatcher<PullExchange>>(shape, rank);
}

}  // namespace trimtab
