// SPDX-License-Identifier: Apache-2.0
// Each pick's row is sent to the rank of its expert, and its result comes back the same way. Rows
// leave sorted by slot, so a rank's block is in its own order of experts; the owner merges the
// blocks of all sources by expert. It also applies the weights: a product is the same wherever it
// is made, and then only a sum is left to the source.
//
// all_to_all: the counts of all slots are gathered, under way with the rows. With replicas the
// counts are those of logical experts; all ranks share them out over the slots alike, and only then
// are the rows sent. mc2: a block begins with the counts of its rank's slots.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/cat.h"
#include "dispatch/collective_exchange.h"
#include "dispatch/dispatcher_of.h"
#include "dispatch/permute_rows.h"
#include "dispatch/pick_order.h"
#include "dispatch/records.h"
#include "dispatch/results.h"
#include "dispatch/row_tasks.h"
#include "dispatch/rows_and_answers.h"
#include "dispatch/share_out.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

struct Memory {
  CollectiveExchange::TermsMemory terms;
  std::span<int32_t> counts;    // [slots] of this rank's picks
  std::span<int32_t> starts;    // [slots]
  std::span<int32_t> picks;     // [max_tokens, top_k] by slot
  std::span<int32_t> places;    // [max_tokens, top_k] of each pick among them
  std::span<std::byte> outbox;  // a block for each rank: the records of this rank's picks, by slot
  std::span<int64_t> bases;     // [ranks] record i of all stands at bases[its rank] + i records
  std::span<int64_t> sent_bytes;  // [ranks]
  // A block from each rank: the records for this rank's experts, by slot. The front of `block`.
  std::span<std::byte> inbox;
  std::span<int64_t> inbox_bytes;   // [ranks]
  Table<int32_t> all_counts;        // kGathered: [ranks, slots]
  std::span<int64_t> count_bytes;   // kGathered: [ranks]
  Table<int32_t> arrived;           // [ranks, local experts] records of each
  std::span<int32_t> cursors;       // [ranks]
  std::span<int32_t> local_counts;  // [local experts]
  std::span<int32_t> row_of;        // [max_rows] where the row of each arrived record stands
  RowsAndAnswers block;             // [max_rows] by expert; then results as the records arrived
  PermuteMemory permute;
  std::span<float> weights;    // [max_rows]
  Results::Memory results;     // arrived: as picks
  ShareOut::Memory share_out;  // kGathered
};

enum class Counts { kGathered, kInBlocks };

template <Counts kCounts>
class AllToAllExchange final : public CollectiveExchange {
 public:
  static constexpr bool kInBlocks = kCounts == Counts::kInBlocks;
  static constexpr const DispatcherKind& kKind = kind_of(kInBlocks ? "mc2" : "all_to_all");
  static Memory plan(Carver& carver, const RankShape& shape);
  static size_t later_bytes(const RankShape& shape) { return ShareOut::later_bytes(shape); }

  AllToAllExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : CollectiveExchange(shape, request, lane, memory.terms),
        m_(memory),
        records_(shape, sizeof(float)),
        results_(shape, comm_, memory.results),
        share_out_(request, lane, memory.share_out),
        slots_(request.ids) {
    if (share_out_.on()) {
      offer_counts();
      return;
    }
    sort();
    if constexpr (!kInBlocks) {
      counts_ = comm_.all_gather_v(std::as_bytes(m_.counts),
                                   std::as_writable_bytes(m_.all_counts.values()), m_.count_bytes);
    }
    send_rows();
  }

 private:
  bool go_to(Stage stage, bool block) override;
  Pending start_the_rest() override;
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override;

  // Bytes in front of the records of a block for a rank.
  static int64_t head_bytes(const RankShape& shape, int rank) {
    return kInBlocks ? Records::padded(shape.num_slots_of(rank) * int64_t{sizeof(int32_t)}) : 0;
  }
  void offer_counts();
  void share_out();
  void sort() { num_picks_ = sort_picks(slots_, m_.counts, m_.starts, m_.picks); }
  void send_rows();
  int64_t lay_out_outbox();
  void fill_outbox();
  void read_counts();
  int32_t assign_rows();

  const Memory m_;
  const Records records_;
  Results results_;
  const ShareOut share_out_;
  std::span<const int32_t>
      slots_;              // [tokens, top_k] of the picks; with replicas once rows are sent
  int32_t num_picks_ = 0;  // that have a slot
  bool rows_sent_ = false;
  Pending counts_, rows_;
};

template <Counts kCounts>
Memory AllToAllExchange<kCounts>::plan(Carver& carver, const RankShape& shape) {
  const int64_t picks = shape.max_tokens * shape.top_k;
  const int64_t record = Records(shape, sizeof(float)).bytes();
  int64_t outbox = picks * record;
  for (int r = 0; r < shape.ranks; ++r) outbox += head_bytes(shape, r);
  const int64_t inbox = shape.max_rows() * record + shape.ranks * head_bytes(shape, shape.rank);
  Memory m;
  m.terms = plan_terms(carver, shape);
  m.counts = carver.take<int32_t>(shape.num_slots());
  m.starts = carver.take<int32_t>(shape.num_slots());
  m.picks = carver.take<int32_t>(picks);
  m.places = carver.take<int32_t>(picks);
  m.bases = carver.take<int64_t>(shape.ranks);
  m.sent_bytes = carver.take<int64_t>(shape.ranks);
  m.inbox_bytes = carver.take<int64_t>(shape.ranks);
  if constexpr (!kInBlocks) {
    m.all_counts = carver.take_table<int32_t>(shape.ranks, shape.num_slots());
    m.count_bytes = carver.take<int64_t>(shape.ranks);
  }
  m.arrived = carver.take_table<int32_t>(shape.ranks, shape.num_local());
  m.cursors = carver.take<int32_t>(shape.ranks);
  m.local_counts = carver.take<int32_t>(shape.num_local());
  m.row_of = carver.take<int32_t>(shape.max_rows());
  m.block = RowsAndAnswers::plan(carver, shape, shape.max_rows(), inbox);
  m.inbox = m.block.front(inbox);
  m.permute = plan_permute(carver, shape.max_rows(), shape.hidden);
  m.weights = carver.take<float>(shape.max_rows());
  m.results = Results::plan(carver, shape, shape.max_rows(), picks, outbox);
  m.outbox = m.results.before;
  if constexpr (!kInBlocks) m.share_out = ShareOut::plan(carver, shape);
  return m;
}

// From memory that is used for nothing else: peers may read it while rows are sent.
template <Counts kCounts>
void AllToAllExchange<kCounts>::offer_counts() {
  const std::span<int32_t> counts = m_.all_counts.values().first(shape_.num_experts);
  count_picks(request_.ids, counts);
  counts_ = comm_.all_gather_v(std::as_bytes(counts), std::as_writable_bytes(share_out_.counts()),
                               m_.count_bytes);
}

template <Counts kCounts>
void AllToAllExchange<kCounts>::share_out() {
  share_out_.compute();
  split_rank_loads(share_out_.table(), share_out_.shares(), rows_of_rank());
  set_most_rows(std::ranges::max(rows_of_rank()));
  if (over_budget()) return;
  const std::span<int32_t> slots = share_out_.slots().first(request_.ids.size());
  std::ranges::copy(request_.ids, slots.begin());
  std::ranges::copy(share_out_.shares_of(shape_.rank), m_.starts.begin());
  assign_slots(share_out_.table(), m_.starts, slots);
  slots_ = slots;
  sort();
  send_rows();
}

template <Counts kCounts>
void AllToAllExchange<kCounts>::send_rows() {
  const int64_t bytes = lay_out_outbox();
  fill_outbox();
  rows_ = comm_.all_to_all_v(m_.outbox.first(bytes), m_.sent_bytes, m_.inbox, m_.inbox_bytes);
  rows_sent_ = true;
}

// Writes the heads; returns the bytes of all blocks.
template <Counts kCounts>
int64_t AllToAllExchange<kCounts>::lay_out_outbox() {
  int64_t heads = 0, records = 0;
  for (int r = 0; r < shape_.ranks; ++r) {
    const auto counts = m_.counts.subspan(shape_.first_slots[r], shape_.num_slots_of(r));
    const int64_t head = head_bytes(shape_, r);
    if (head > 0)
      std::memcpy(m_.outbox.data() + heads + records, counts.data(), counts.size_bytes());
    heads += head;
    m_.bases[r] = heads;
    const int64_t block =
        std::accumulate(counts.begin(), counts.end(), int64_t{0}) * records_.bytes();
    m_.sent_bytes[r] = head + block;
    records += block;
  }
  return heads + records;
}

template <Counts kCounts>
void AllToAllExchange<kCounts>::fill_outbox() {
  const ConstScaledRows rows{request_.x, request_.scales};
  for_each_piece(team_, num_picks_, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int32_t pick = m_.picks[i];
      m_.places[pick] = static_cast<int32_t>(i);
      std::byte* base = m_.outbox.data() + m_.bases[shape_.rank_of_slot(slots_[pick])];
      const float weight = request_.weights[pick];
      copy_row(rows, pick / request_.top_k, records_.rows(base, i + 1), i, request_.weight_on_input,
               weight);
      *records_.template tail<float>(base, i) = request_.weight_on_input ? 1.0F : weight;
    }
  });
}

// With replicas no rows may have been sent yet.
template <Counts kCounts>
Pending AllToAllExchange<kCounts>::start_the_rest() {
  if (rows_sent_) return rows_;
  std::ranges::fill(m_.sent_bytes, 0);
  return comm_.all_to_all_v({}, m_.sent_bytes, {}, m_.inbox_bytes);
}

template <Counts kCounts>
bool AllToAllExchange<kCounts>::go_to(Stage stage, bool block) {
  switch (stage) {
    case Stage::kArrived:
      if (!done(counts_, block)) return false;
      if (!rows_sent_) {
        share_out();
        if (over_budget()) return true;
      }
      return done(rows_, block);
    case Stage::kReturned:
      return results_.done(block);
    case Stage::kDrained:
      return released(counts_, block) && released(rows_, block) && results_.released(block);
  }
  return false;
}

// Fills arrived.
template <Counts kCounts>
void AllToAllExchange<kCounts>::read_counts() {
  const SlotRanges slots(shape_.first_slots);
  const int64_t head = head_bytes(shape_, shape_.rank);
  const std::byte* block = m_.inbox.data();
  for (int s = 0; s < shape_.ranks; ++s) {
    const std::span<int32_t> arrived = m_.arrived[s];
    const int64_t bytes = m_.inbox_bytes[s];
    if (kInBlocks) {
      if (bytes >= head && !arrived.empty())
        std::memcpy(arrived.data(), block, arrived.size_bytes());
    } else {
      const std::span<const int32_t> sent =
          share_out_.on() ? share_out_.shares_of(s) : m_.all_counts[s];
      std::ranges::copy(slots.of(shape_.rank, sent), arrived.begin());
    }
    const int64_t rows = std::accumulate(arrived.begin(), arrived.end(), int64_t{0});
    if (bytes != head + rows * records_.bytes()) {  // broken on the way: the terms were equal
      throw InvalidArgument(cat(kKind.name, " dispatch: rank ", s, " sent ", bytes, " bytes for ",
                                rows, " rows of ", records_.bytes(), " bytes"));
    }
    results_.set_rows_for(s, rows);
    block += bytes;
  }
}

// Where the row of each record stands: by expert, source, then as in the source's block. Returns
// the rows.
template <Counts kCounts>
int32_t AllToAllExchange<kCounts>::assign_rows() {
  int32_t records = 0;
  for (int s = 0; s < shape_.ranks; ++s) {
    m_.cursors[s] = records;
    for (const int32_t count : m_.arrived[s]) records += count;
  }
  int32_t row = 0;
  for (int slot = 0; slot < shape_.num_local(); ++slot) {
    const int32_t first = row;
    for (int s = 0; s < shape_.ranks; ++s) {
      for (int32_t n = 0; n < m_.arrived(s, slot); ++n) {
        m_.row_of[m_.cursors[s]++] = row++;
      }
    }
    m_.local_counts[slot] = row - first;
  }
  return row;
}

template <Counts kCounts>
Tokens AllToAllExchange<kCounts>::arrange() {
  read_counts();
  const int32_t num_rows = assign_rows();
  const ScaledRows rows = m_.block.rows(num_rows);
  std::byte* base = m_.inbox.data();
  int64_t done = 0;  // records of earlier sources
  for (int s = 0; s < shape_.ranks; ++s) {
    base += head_bytes(shape_, shape_.rank);
    const int64_t end = m_.cursors[s];
    const ScaledRows records = records_.rows(base, end);
    for_each_piece(team_, end - done, [&](int64_t first, int64_t last) {
      for (int64_t i = done + first; i < done + last; ++i) {
        const int32_t row = m_.row_of[i];
        copy_row(records, i, rows, row, false, 1.0F);
        m_.weights[row] = *records_.template tail<float>(base, i);
      }
    });
    done = end;
  }
  Tokens tokens = {Format::kStandard, rows.x, m_.weights.first(num_rows),
                   m_.local_counts,   0,      rows.scales};
  tokens.y = m_.block.answers(num_rows);
  return tokens;
}

template <Counts kCounts>
void AllToAllExchange<kCounts>::publish(ConstRows y, Left left) {
  const Rows made = m_.block.answers(y.rows);
  if (!m_.block.holds(y)) copy_rows(y, made, team_);
  permute_rows(made, m_.row_of.first(y.rows),
               left == Left::kSum ? std::span<const float>{} : m_.weights, m_.permute, team_);
  results_.send(made, rows_, team_);
}

template <Counts kCounts>
void AllToAllExchange<kCounts>::combine(Rows out) {
  const ConstRows results = results_.arrived(team_);
  sum_rows(team_, out, request_.top_k, [&](int64_t pick) -> WeightedRow {
    if (request_.ids[pick] < 0) return {};
    return {results.row_as<float>(m_.places[pick])};
  });
}

}  // namespace

std::unique_ptr<Dispatcher> make_all_to_all_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<AllToAllExchange<Counts::kGathered>>>(shape, rank);
}

std::unique_ptr<Dispatcher> make_mc2_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<AllToAllExchange<Counts::kInBlocks>>>(shape, rank);
}

}  // namespace trimtab
