// SPDX-License-Identifier: Apache-2.0
// A token goes once to each rank that has any of its picks, and one row, their weighted sum, comes
// back: for ranks far from each other, where bytes are dear. With exact_order one row a pick comes
// back, so that the source can add them in the order of the ids. With replicas tokens leave once
// all ranks know each other's counts and have shared the picks out.
#include <algorithm>
#include <memory>
#include <numeric>

#include "base/cat.h"
#include "dispatch/collective_exchange.h"
#include "dispatch/dispatcher_of.h"
#include "dispatch/local_picks.h"
#include "dispatch/packing.h"
#include "dispatch/replica_choice.h"
#include "dispatch/results.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Memory {
  CollectiveExchange::TermsMemory terms;
  Packing::Memory packing;
  ReplicaChoice::Memory choice;
  std::span<int32_t> destinations;  // [ranks]
  std::span<std::byte> inbox;       // [records], of tokens of any rank: the front of local.block
  std::span<int64_t> inbox_bytes;   // [ranks]
  std::span<int32_t> ids;           // [records, top_k]
  std::span<float> weights;         // [records, top_k]
  LocalPicks::Memory local;
  Results::Memory results;  // one a record, or one a pick
};

class PackedExchange final : public CollectiveExchange {
 public:
  static constexpr const DispatcherKind& kKind = kind_of("packed");
  static Memory plan(Carver& carver, const RankShape& shape);
  static size_t later_bytes(const RankShape& shape) { return ReplicaChoice::later_bytes(shape); }

  PackedExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : CollectiveExchange(shape, request, lane, memory.terms),
        m_(memory),
        packing_(shape, memory.packing),
        picks_(shape, memory.local),
        results_(shape, comm_, memory.results),
        choice_(request, lane, memory.choice) {
    std::iota(m_.destinations.begin(), m_.destinations.end(), 0);
    if (!choice_.on()) send_tokens();
  }

 private:
  // With replicas no tokens may have been sent yet.
  Pending start_the_rest() override {
    return tokens_sent_ ? tokens_ : packing_.send_nothing(comm_, m_.inbox_bytes);
  }
  bool go_to(Stage stage, bool block) override {
    switch (stage) {
      case Stage::kArrived:
        if (!tokens_sent_) {
          choice_.choose(shape_.rank, rows_of_rank());
          set_most_rows(std::ranges::max(rows_of_rank()));
          if (over_budget()) return true;
          send_tokens();
        }
        return done(tokens_, block);
      case Stage::kReturned:
        return results_.done(block);
      case Stage::kDrained:
        return released(tokens_, block) && results_.released(block);
    }
    return false;
  }
  void send_tokens() {
    packing_.pack(choice_.request(), m_.destinations, team_);
    tokens_ =
        comm_.all_to_all_v(packing_.outbox(), packing_.sent_bytes(), m_.inbox, m_.inbox_bytes);
    tokens_sent_ = true;
  }
  Tokens arrange() override;
  void publish(ConstRows y, Left left) override;
  void combine(Rows out) override {
    if (shape_.exact_order) {
      packing_.sum_picks(results_.arrived(team_), out, team_);
    } else {
      packing_.sum_records(results_.arrived(team_), out, team_);
    }
  }

  const Memory m_;
  Packing packing_;
  LocalPicks picks_;
  Results results_;
  ReplicaChoice choice_;
  bool tokens_sent_ = false;
  Pending tokens_;
};

Memory PackedExchange::plan(Carver& carver, const RankShape& shape) {
  const int64_t records = std::min(shape.all_tokens(), shape.max_rows());
  const int64_t most_made = shape.exact_order ? shape.max_rows() : records;
  const int64_t most_sent = shape.max_tokens * std::min(shape.top_k, shape.ranks);
  const int64_t most_arriving = shape.exact_order ? shape.max_tokens * shape.top_k : most_sent;
  const int64_t record = Packing::record_bytes(shape);
  Memory m;
  m.terms = plan_terms(carver, shape, true);
  m.packing = Packing::plan(carver, shape, most_sent);
  m.choice = ReplicaChoice::plan(carver, shape, m.terms);
  m.destinations = carver.take<int32_t>(shape.ranks);
  m.inbox_bytes = carver.take<int64_t>(shape.ranks);
  m.ids = carver.take<int32_t>(records * shape.top_k);
  m.weights = carver.take<float>(records * shape.top_k);
  m.local = LocalPicks::plan(carver, shape, shape.max_rows(), records * record);
  m.inbox = m.local.block.front(records * record);
  m.results = Results::plan(carver, shape, most_made, most_arriving, most_sent * record);
  m.packing.outbox = m.results.before;
  return m;
}

Tokens PackedExchange::arrange() {
  const auto count = std::accumulate(m_.inbox_bytes.begin(), m_.inbox_bytes.end(), int64_t{0}) /
                     Packing::record_bytes(shape_);
  const int64_t picks = count * request_.top_k;
  packing_.read_picks(m_.inbox, count, m_.ids.first(picks), m_.weights, team_);
  for (int64_t record = 0; record < count; ++record) {
    if (m_.ids[record * request_.top_k] < 0) {  // broken on the way
      throw InvalidArgument(
          cat("packed dispatch: a token without a pick of rank ", shape_.rank, " came to it"));
    }
  }
  Tokens tokens = picks_.arrange({packing_.rows(m_.inbox, count), m_.ids.first(picks), m_.weights,
                                  request_.top_k, request_.weight_on_input, true},
                                 team_);
  if (shape_.exact_order) tokens.picks = {};  // a row a pick goes back
  return tokens;
}

void PackedExchange::publish(ConstRows y, Left left) {
  const int64_t record = Packing::record_bytes(shape_);
  int64_t records = 0;
  for (size_t s = 0; s < m_.inbox_bytes.size(); ++s) {
    const int64_t count = m_.inbox_bytes[s] / record;
    results_.set_rows_for(s, shape_.exact_order ? picks_.rows_of(records, records + count) : count);
    records += count;
  }
  results_.send(shape_.exact_order ? picks_.weigh_in_place(y, left, team_)
                                   : picks_.sum_in_place(y, left, team_),
                tokens_, team_);
}

}  // namespace

std::unique_ptr<Dispatcher> make_packed_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<PackedExchange>>(shape, rank);
}

}  // namespace trimtab
