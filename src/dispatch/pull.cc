// SPDX-License-Identifier: Apache-2.0
// Ranks that share memory: nothing is sent. A rank posts where its rows are and how its picks are
// spread over the experts; owners copy the rows from there straight into expert order (`fused`:
// they only note where each is), and sources read the results in place. Where a source's rows stand
// at an owner follows from the counts of all ranks, so no index travels back. With replicas the
// counts are those of logical experts, and all ranks share them out over the slots alike.
//
// Posts of one exchange: 1 the offer (x, picks, counts), 2 the answer (y), 3 nothing: this rank has
// read all answers. One that ends on all ranks has two: the offer and nothing.
#include <algorithm>
#include <memory>

#include "base/cat.h"
#include "dispatch/dispatcher_of.h"
#include "dispatch/peer_readable.h"
#include "dispatch/pick_order.h"
#include "dispatch/row_tasks.h"
#include "dispatch/rows_and_answers.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/share_out.h"
#include "dispatch/staged_exchange.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

// Post 1.
struct Offer {
  ConstScaledRows rows;            // [tokens]
  std::span<const float> weights;  // [tokens, top_k]
  // The number token * top_k + k of every pick with an expert, by expert, then in order.
  std::span<const int32_t> picks;
  std::span<const int32_t> counts;  // [slots], or [num_experts] with replicas: picks of each expert
  int top_k = 0;
  bool weight_on_input = false;
  Terms terms;
};

// Post 2.
struct Answer {
  ConstRows y;  // as the owner's Tokens::x
  Left left = Left::kWeightAndSum;
};

// The rows that one of this rank's experts gets from one source.
struct Segment {
  int32_t first = 0;  // rows of this rank before it
  int32_t row = 0;    // where its first row stands: first, but for the gaps of kBatched
  int32_t pick = 0;   // first of the source's picks
};

struct Memory {
  // Read by peers until the exchange is drained, so they are not members of it: its destructor
  // waits for readers.
  Offer* offer = nullptr;
  Answer* answer = nullptr;
  ScaledRows own;             // [max_tokens] for Offer::rows where peers can't read the caller's
  std::span<float> weights;   // [max_tokens * top_k] the same for Offer::weights
  std::span<int32_t> picks;   // [max_tokens * top_k] Offer::picks
  std::span<int32_t> counts;  // [slots] Offer::counts
  // [slots] where this rank's rows begin in the owner's order; first a cursor.
  std::span<int32_t> starts;
  std::span<int32_t> places;         // [max_tokens * top_k] row of each pick in the owner's order
  std::span<const Offer*> offers;    // [ranks]
  std::span<const int32_t*> sent;    // [ranks][slots] picks that a rank sends to each
  std::span<const Answer*> answers;  // [ranks]
  std::span<int32_t> cursors;        // [ranks]
  std::span<Segment> segments;       // [local experts, ranks] and one more, for the end
  std::span<int32_t> local_counts;   // [local experts]
  RowsAndAnswers block;              // [max_rows] but for kIndirect
  ScaledRows rows;                   // kIndirect: [max_rows] without memory
  Rows y;                            // kIndirect: f32 [max_rows, hidden]
  std::span<const std::byte*> at, scales_at;  // [max_rows] kIndirect: RowPointers
  std::span<float> row_weights;               // [max_rows]
  ShareOut::Memory share_out;
};

Memory plan_memory(Carver& carver, const RankShape& shape, Format format) {
  const int64_t max_rows =
      format == Format::kBatched ? shape.num_local() * shape.capacity : shape.max_rows();
  const int64_t picks = shape.max_tokens * shape.top_k;
  Memory m;
  m.offer = carver.take<Offer>(1).data();
  m.answer = carver.take<Answer>(1).data();
  m.own = take_scaled_rows(carver, shape.max_tokens, shape);
  m.weights = carver.take<float>(picks);
  m.picks = carver.take<int32_t>(picks);
  m.counts = carver.take<int32_t>(shape.num_slots());
  m.starts = carver.take<int32_t>(shape.num_slots());
  m.places = carver.take<int32_t>(picks);
  m.offers = carver.take<const Offer*>(shape.ranks);
  m.sent = carver.take<const int32_t*>(shape.ranks);
  m.answers = carver.take<const Answer*>(shape.ranks);
  m.cursors = carver.take<int32_t>(shape.ranks);
  m.segments = carver.take<Segment>(int64_t{shape.num_local()} * shape.ranks + 1);
  m.local_counts = carver.take<int32_t>(shape.num_local());
  if (format == Format::kIndirect) {
    Carver nowhere(nullptr);
    m.rows = take_scaled_rows(nowhere, max_rows, shape);
    m.y = carver.take_rows(max_rows, shape.hidden, DType::kF32);
    m.at = carver.take<const std::byte*>(max_rows);
    m.scales_at = carver.take<const std::byte*>(shape.scales().cols > 0 ? max_rows : 0);
  } else {
    m.block = RowsAndAnswers::plan(carver, shape, max_rows);
  }
  m.row_weights = carver.take<float>(max_rows);
  m.share_out = ShareOut::plan(carver, shape);
  return m;
}

template <Format format>
class PullExchange final : public StagedExchange {
 public:
  static constexpr bool kBatched = format == Format::kBatched,
                        kIndirect = format == Format::kIndirect;
  static constexpr const DispatcherKind& kKind = kind_of(kBatched    ? "pull_batched"
                                                         : kIndirect ? "fused"
                                                                     : "pull");
  static_assert(kKind.format == format);
  static Memory plan(Carver& carver, const RankShape& shape) {
    return plan_memory(carver, shape, format);
  }
  static size_t later_bytes(const RankShape& shape) { return ShareOut::later_bytes(shape); }
  static void check(const RankShape&, const Lane& lane) {
    if (lane.comm.board() == nullptr) {
      throw InvalidArgument(cat(kKind.name,
                                " needs ranks that share memory, but this Communicator has no "
                                "board; use all_to_all, packed or hybrid"));
    }
  }

  PullExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : StagedExchange(shape, request, lane),
        board_(*lane.comm.board()),
        m_(memory),
        share_out_(request, lane, memory.share_out) {
    const int num_experts = share_out_.on() ? shape.num_experts : shape.num_slots();
    const std::span<int32_t> counts = m_.counts.first(num_experts);
    const int32_t num_picks = sort_picks(request.ids, counts, m_.starts, m_.picks);
    std::construct_at(
        m_.offer, Offer{offered_rows(), peer_readable(board_, request.weights, m_.weights),
                        m_.picks.first(num_picks), counts, request.top_k, request.weight_on_input,
                        with_request(shape.terms, request)});
    first_post_ = board_.post(m_.offer);
  }

 private:
  bool come_to(Stage stage, bool block) override {
    if (!has_come(static_cast<uint64_t>(stage), block)) return false;
    if (stage != Stage::kArrived) return true;
    if (!laid_out_) lay_out();
    // All ranks see from the offers that they differ or that an expert or rank overflows. Once each
    // has said so, nobody reads the others' offers.
    return !fails() || has_come(1, block);
  }
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override;

  ConstScaledRows offered_rows();
  bool has_come(uint64_t post, bool block);
  bool fails() const { return other_ >= 0 || overflowing_slot_ >= 0 || over_budget(); }
  void lay_out();
  void compare_terms();
  void read_counts();
  void lay_out_rows();
  int32_t lay_out_slot(int32_t slot, int32_t place, bool own);
  Segment& segment(int local, int source) { return m_.segments[local * shape_.ranks + source]; }
  void find_picks();
  void bring_rows(const ScaledRows& rows, int64_t first, int64_t last);
  void find_places();

  Board& board_;
  const Memory m_;
  const ShareOut share_out_;
  uint64_t first_post_ = 0;
  bool laid_out_ = false;
  int32_t num_rows_ = 0;
  int other_ = -1;  // the first rank with other terms than this one, if any
  Terms theirs_;
  int32_t overflowing_slot_ = -1, overflow_ = 0;
};

// What peers may read. Whoever copies a row can multiply it by its weight then; for kIndirect it is
// done here, as with one pick a token each row has one weight.
template <Format format>
ConstScaledRows PullExchange<format>::offered_rows() {
  const ConstScaledRows rows = {request_.x, request_.scales};
  if (!kIndirect || !request_.weight_on_input) {
    return {peer_readable(board_, rows.x, m_.own.x, team_),
            peer_readable(board_, rows.scales, m_.own.scales, team_)};
  }
  for_each_piece(team_, rows.x.rows, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      copy_row(rows, t, m_.own, t, true, request_.weights[t]);
    }
  });
  return m_.own.slice(0, rows.x.rows);
}

template <Format format>
bool PullExchange<format>::has_come(uint64_t post, bool block) {
  if (!block) return board_.posted(first_post_ + post);
  static constexpr const char* kNames[] = {"pull dispatch", "pull combine", "pull drain"};
  board_.wait_posted(first_post_ + post, kNames[post]);
  return true;
}

template <Format format>
void PullExchange<format>::lay_out() {
  {
    const Board::Reading reading(board_);
    compare_terms();
    if (other_ < 0) lay_out_rows();
  }
  laid_out_ = true;
  if (fails()) board_.post(nullptr);
}

// Fills offers. Nothing else of them may be used before: unequal shapes or shares would lead out of
// the peers' memory.
template <Format format>
void PullExchange<format>::compare_terms() {
  for (int s = 0; s < shape_.ranks; ++s) {
    m_.offers[s] = static_cast<const Offer*>(board_.item(s, first_post_));
    if (other_ >= 0 || m_.offers[s]->terms == m_.offer->terms) continue;
    other_ = s;
    theirs_ = m_.offers[s]->terms;
  }
}

// Fills sent.
template <Format format>
void PullExchange<format>::read_counts() {
  for (int s = 0; s < shape_.ranks; ++s) {
    const Offer* const offer = m_.offers[s];
    m_.sent[s] = offer->counts.data();
    if (!share_out_.on()) continue;
    std::ranges::copy(offer->counts, Table(share_out_.counts(), shape_.num_experts)[s].begin());
    m_.sent[s] = share_out_.shares_of(s).data();
  }
  if (share_out_.on()) share_out_.compute();
}

// Walks every owner's order (expert, source) over what all ranks send: fills the segments of this
// owner, and the starts of this source at all owners.
template <Format format>
void PullExchange<format>::lay_out_rows() {
  read_counts();
  std::ranges::fill(m_.cursors, 0);
  const SlotRanges slots(shape_.first_slots);
  int64_t most_rows = 0;
  for (int owner = 0; owner < shape_.ranks; ++owner) {
    const bool own = owner == shape_.rank;
    int32_t rows = 0, place = 0;
    for (int slot = slots.first(owner); slot < slots.end(owner); ++slot) {
      if (own) num_rows_ = rows;
      const int32_t count = lay_out_slot(slot, kBatched ? place : rows, own);
      if (kBatched && count > shape_.capacity && overflowing_slot_ < 0) {
        overflowing_slot_ = slot;
        overflow_ = count;
      }
      rows += count;
      place += static_cast<int32_t>(shape_.capacity);
    }
    if (own) num_rows_ = rows;
    most_rows = std::max<int64_t>(most_rows, rows);
  }
  set_most_rows(most_rows);
  m_.segments.back() = {num_rows_, num_rows_, 0};
  if (share_out_.on()) find_picks();
}

// The slot's rows stand from `place` on at its owner. Returns how many they are.
template <Format format>
int32_t PullExchange<format>::lay_out_slot(int32_t slot, int32_t place, bool own) {
  int32_t rows = 0;
  for (int s = 0; s < shape_.ranks; ++s) {
    const int32_t count = m_.sent[s][slot];
    if (own) {
      segment(slot - shape_.first_slot(), s) = {num_rows_ + rows, place + rows, m_.cursors[s]};
    }
    if (s == shape_.rank) m_.starts[slot] = place + rows;
    rows += count;
    m_.cursors[s] += count;
  }
  if (own) m_.local_counts[slot - shape_.first_slot()] = rows;
  return rows;
}

// With replicas a source's picks stand by expert, and an expert's slots get theirs one after the
// other.
template <Format format>
void PullExchange<format>::find_picks() {
  for (int s = 0; s < shape_.ranks; ++s) {
    int32_t pick = 0;
    for (const int32_t slot : share_out_.table().replica_slot) {
      const int32_t local = slot - shape_.first_slot();
      if (0 <= local && local < shape_.num_local()) segment(local, s).pick = pick;
      pick += m_.sent[s][slot];
    }
  }
}

template <Format format>
Tokens PullExchange<format>::arrange() {
  if (fails()) end_on_all_ranks();
  if (other_ >= 0) throw_difference(kKind.name, shape_.rank, m_.offer->terms, other_, theirs_);
  if (overflowing_slot_ >= 0) {
    throw InvalidArgument(cat(kKind.name, ": the expert in slot ", overflowing_slot_, " gets ",
                              overflow_, " rows, more than its capacity of ", shape_.capacity));
  }
  const Board::Reading reading(board_);
  const int64_t rows = kBatched ? shape_.num_local() * shape_.capacity : num_rows_;
  const ScaledRows used = kIndirect ? m_.rows.slice(0, rows) : m_.block.rows(rows);
  for_each_piece(team_, num_rows_,
                 [&](int64_t first, int64_t last) { bring_rows(used, first, last); });
  Tokens tokens = {format,          used.x,          m_.row_weights.first(rows),
                   m_.local_counts, shape_.capacity, used.scales};
  tokens.y = kIndirect ? m_.y.slice(0, rows) : m_.block.answers(rows);
  if constexpr (kIndirect) {
    tokens.at = {m_.at.first(rows), m_.scales_at.first(m_.scales_at.empty() ? 0 : rows)};
    tokens.board = &board_;
  }
  return tokens;
}

template <Format format>
void PullExchange<format>::bring_rows(const ScaledRows& rows, int64_t first, int64_t last) {
  // The last segment that begins at or before the row: empty ones share their begin with the one
  // that follows.
  const auto after = std::ranges::upper_bound(m_.segments, first, {},
                                              [](const Segment& s) { return int64_t{s.first}; });
  int64_t segment = after - m_.segments.begin() - 1;
  for (int64_t n = first; n < last; ++n) {
    while (m_.segments[segment + 1].first <= n) ++segment;
    const Segment& from = m_.segments[segment];
    const Offer& offer = *m_.offers[segment % shape_.ranks];
    const int32_t pick = offer.picks[from.pick + n - from.first];
    const float weight = offer.weights[pick];
    const int64_t row = from.row + n - from.first;
    const int64_t token = pick / offer.top_k;
    if constexpr (kIndirect) {
      m_.at[row] = offer.rows.x.row(token);
      if (!m_.scales_at.empty()) m_.scales_at[row] = offer.rows.scales.row(token);
    } else {
      copy_row(offer.rows, token, rows, row, offer.weight_on_input, weight);
    }
    m_.row_weights[row] = offer.weight_on_input ? 1.0F : weight;
  }
}

template <Format format>
void PullExchange<format>::publish(ConstRows y, Left left) {
  if (!board_.shares(y.data, extent_bytes(y))) {
    throw InvalidArgument(
        "send_back: y must lie in memory that peers can read (Communicator::allocate)");
  }
  board_.post(std::construct_at(m_.answer, Answer{y, left}));
}

// Of this rank's picks.
template <Format format>
void PullExchange<format>::find_places() {
  const int32_t* pick = m_.picks.data();
  for (int32_t i = 0; i < shape_.num_slots(); ++i) {
    const int32_t slot = share_out_.on() ? share_out_.table().replica_slot[i] : i;
    const int32_t end = m_.starts[slot] + m_.sent[shape_.rank][slot];
    for (int32_t place = m_.starts[slot]; place < end; ++place, ++pick) {
      m_.places[*pick] = place;
      if (share_out_.on()) share_out_.slots()[*pick] = slot;
    }
  }
}

template <Format format>
void PullExchange<format>::combine(Rows out) {
  find_places();
  const std::span<const int32_t> slots = share_out_.on() ? share_out_.slots() : request_.ids;
  {
    const Board::Reading reading(board_);
    for (int r = 0; r < shape_.ranks; ++r) {
      m_.answers[r] = static_cast<const Answer*>(board_.item(r, first_post_ + 1));
    }
    sum_rows(team_, out, request_.top_k, [this, slots](int64_t pick) -> WeightedRow {
      if (request_.ids[pick] < 0) return {};
      const Answer& answer = *m_.answers[shape_.rank_of_slot(slots[pick])];
      return {answer.y.template row_as<float>(m_.places[pick]),
              combine_weight(answer.left, request_.weight_on_input, request_.weights[pick])};
    });
  }
  board_.post(nullptr);
}

}  // namespace

std::unique_ptr<Dispatcher> make_pull_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<PullExchange<Format::kStandard>>>(shape, rank);
}

std::unique_ptr<Dispatcher> make_fused_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<PullExchange<Format::kIndirect>>>(shape, rank);
}

std::unique_ptr<Dispatcher> make_pull_batched_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<PullExchange<Format::kBatched>>>(shape, rank);
}

}  // namespace trimtab
