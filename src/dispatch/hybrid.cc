// SPDX-License-Identifier: Apache-2.0
// Several hosts: a token goes once to each host that has any of its picks, to one rank there;
// inside a host the ranks pull each other's tokens from shared memory. A host's sum comes back in
// one row.
//
// The exchange inside the host is a pull of its own, over the tokens that have come to each of its
// ranks; its results are what goes back between the hosts.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "base/cat.h"
#include "dispatch/collective_exchange.h"
#include "dispatch/dispatcher_of.h"
#include "dispatch/packing.h"
#include "dispatch/replica_choice.h"
#include "dispatch/results.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

struct HybridShape : RankShape {
  HybridShape(std::string_view dispatcher, const DispatchShape& shape, int r,
              std::span<const int32_t> hosts);

  std::vector<int32_t> destinations;  // [ranks] the rank of its host that takes this rank's tokens
  // [slots] as the exchange inside this rank's host numbers them, -1 on others.
  std::vector<int32_t> slots_on_host;
  int num_hosts = 0;
  int64_t max_arriving = 0;  // tokens
  std::unique_ptr<const Dispatcher> inside;
};

// The rank that takes the tokens of `source` for the host of `rank`: sources of a host take turns.
int32_t delegate(std::span<const int32_t> hosts, int source, int rank) {
  std::vector<int32_t> ranks;
  for (int32_t r = 0; r < std::ssize(hosts); ++r) {
    if (hosts[r] == hosts[rank]) ranks.push_back(r);
  }
  if (hosts[source] == hosts[rank]) return source;
  const auto place = std::count(hosts.begin(), hosts.begin() + source, hosts[source]);
  return ranks[place % std::ssize(ranks)];
}

HybridShape::HybridShape(std::string_view dispatcher, const DispatchShape& shape, int r,
                         std::span<const int32_t> hosts)
    : RankShape(dispatcher, shape, r) {
  if (std::ssize(hosts) != ranks) {
    throw InvalidArgument(cat(dispatcher, ": hosts of ", hosts.size(), " ranks for ", ranks));
  }
  terms.groups = hash_of(hosts);
  num_hosts = static_cast<int>(std::set(hosts.begin(), hosts.end()).size());
  std::vector<int32_t> first_on_host{0};
  slots_on_host.assign(num_slots(), -1);
  int rank_on_host = 0;
  for (int other = 0; other < ranks; ++other) {
    destinations.push_back(delegate(hosts, rank, other));
    if (hosts[other] != hosts[rank]) continue;
    if (other < rank) ++rank_on_host;
    const auto first = slots_on_host.begin() + first_slots[other];
    std::iota(first, first + num_slots_of(other), first_on_host.back());
    first_on_host.push_back(first_on_host.back() + num_slots_of(other));
  }
  // The same on all ranks of the host, as the exchange inside wants it.
  std::vector<int64_t> arriving(ranks);
  for (int source = 0; source < ranks; ++source) {
    arriving[delegate(hosts, source, rank)] += max_tokens;
  }
  max_arriving = *std::ranges::max_element(arriving);
  // Its ranks get what all ranks have found to be within the budget.
  inside = make_pull_dispatcher({.max_tokens = max_arriving,
                                 .hidden = hidden,
                                 .top_k = top_k,
                                 .dtype = dtype,
                                 .first_slots = first_on_host,
                                 .row_budget = row_budget},
                                rank_on_host);
}

struct Memory {
  CollectiveExchange::TermsMemory terms;
  Packing::Memory packing;
  ReplicaChoice::Memory choice;
  std::span<std::byte> inbox;      // [max_arriving] records
  std::span<int64_t> inbox_bytes;  // [ranks]
  std::span<int32_t> ids;          // [max_arriving, top_k]
  std::span<float> weights;        // [max_arriving, top_k]
  Rows made;                       // f32 [max_arriving, hidden] the sums of this host
  Results::Memory results;         // one a record
};

class HybridExchange final : public CollectiveExchange {
 public:
  using Shape = HybridShape;
  static constexpr const DispatcherKind& kKind = kind_of("hybrid");
  static Memory plan(Carver& carver, const HybridShape& shape);
  static size_t later_bytes(const HybridShape& shape) {
    return std::max(shape.inside->workspace_bytes(), ReplicaChoice::later_bytes(shape));
  }
  static std::vector<std::unique_ptr<Communicator>> make_groups(const HybridShape&,
                                                                Communicator& comm) {
    std::vector<std::unique_ptr<Communicator>> groups;
    groups.push_back(comm.split(comm.hosts()[comm.rank()], comm.rank()));
    return groups;
  }
  static void check(const HybridShape& shape, const Lane& lane) {
    const int on_host = SlotRanges(shape.inside->shape().first_slots).num_ranks();
    if (lane.groups.empty() || lane.groups[0]->size() != on_host ||
        lane.groups[0]->rank() != shape.inside->rank() || lane.groups[0]->board() == nullptr) {
      throw InvalidArgument(
          cat("hybrid needs the group of its host's ", on_host, " ranks as the lane's groups[0]"));
    }
  }

  HybridExchange(const HybridShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : CollectiveExchange(shape, request, lane, memory.terms),
        hybrid_(shape),
        m_(memory),
        packing_(shape, memory.packing),
        choice_(request, lane, memory.choice),
        results_(shape, comm_, memory.results),
        lane_{*lane.groups[0], lane.workspace, lane.team, {}, lane.trace} {
    if (!choice_.on()) send_tokens();
  }

 private:
  // With replicas no tokens may have been sent yet.
  Pending start_the_rest() override {
    return tokens_sent_ ? tokens_ : packing_.send_nothing(comm_, m_.inbox_bytes);
  }
  bool go_to(Stage stage, bool block) override;
  Tokens arrange() override { return inside_->tokens(); }
  void publish(ConstRows y, Left left) override { inside_->send_back(y, left); }
  void combine(Rows out) override { packing_.sum_records(results_.arrived(team_), out, team_); }

  void send_tokens();
  void dispatch_inside();
  int32_t slot_on_host(int32_t id) const;
  void return_sums();

  const HybridShape& hybrid_;
  const Memory m_;
  Packing packing_;
  ReplicaChoice choice_;
  Results results_;
  Lane lane_;  // inside the host
  ExchangePtr inside_;
  int64_t arrived_ = 0;  // tokens
  bool tokens_sent_ = false, returning_ = false;
  Pending tokens_;
};

Memory HybridExchange::plan(Carver& carver, const HybridShape& shape) {
  const int64_t record = Packing::record_bytes(shape);
  const int64_t most_sent = shape.max_tokens * std::min(shape.top_k, shape.num_hosts);
  Memory m;
  m.terms = plan_terms(carver, shape, true);
  m.packing = Packing::plan(carver, shape, most_sent);
  m.choice = ReplicaChoice::plan(carver, shape, m.terms);
  m.inbox = carver.take<std::byte>(shape.max_arriving * record);
  m.inbox_bytes = carver.take<int64_t>(shape.ranks);
  m.ids = carver.take<int32_t>(shape.max_arriving * shape.top_k);
  m.weights = carver.take<float>(shape.max_arriving * shape.top_k);
  m.made = carver.take_rows(shape.max_arriving, shape.hidden, DType::kF32);
  m.results = Results::plan(carver, shape, shape.max_arriving, most_sent, most_sent * record);
  m.packing.outbox = m.results.before;
  return m;
}

bool HybridExchange::go_to(Stage stage, bool block) {
  switch (stage) {
    case Stage::kArrived:
      if (!tokens_sent_) {
        choice_.choose(shape_.rank, rows_of_rank());
        set_most_rows(std::ranges::max(rows_of_rank()));
        if (over_budget()) return true;
        send_tokens();
      }
      if (!done(tokens_, block)) return false;
      if (inside_ == nullptr) dispatch_inside();
      return reached(*inside_, stage, block);
    case Stage::kReturned:
      if (!reached(*inside_, stage, block)) return false;
      if (!returning_) return_sums();
      return results_.done(block);
    case Stage::kDrained:
      return reached(*inside_, stage, block) && released(tokens_, block) &&
             results_.released(block);
  }
  return false;
}

void HybridExchange::send_tokens() {
  packing_.pack(choice_.request(), hybrid_.destinations, team_);
  tokens_ = comm_.all_to_all_v(packing_.outbox(), packing_.sent_bytes(), m_.inbox, m_.inbox_bytes);
  tokens_sent_ = true;
}

void HybridExchange::dispatch_inside() {
  const int64_t record = Packing::record_bytes(shape_);
  for (size_t s = 0; s < m_.inbox_bytes.size(); ++s) {
    const int64_t tokens = m_.inbox_bytes[s] / record;
    results_.set_rows_for(s, tokens);
    arrived_ += tokens;
  }
  const int64_t picks = arrived_ * request_.top_k;
  const std::span<int32_t> ids = m_.ids.first(picks);
  packing_.read_picks(m_.inbox, arrived_, ids, m_.weights, team_);
  for (int32_t& id : ids) id = slot_on_host(id);
  const ScaledRows rows = packing_.rows(m_.inbox, arrived_);
  inside_ = hybrid_.inside->dispatch(
      {rows.x, ids, m_.weights.first(picks), request_.top_k, request_.weight_on_input, rows.scales},
      lane_);
}

int32_t HybridExchange::slot_on_host(int32_t id) const {
  if (id == -1) return id;
  const bool is_slot = 0 <= id && id < shape_.num_slots();
  const int32_t slot = is_slot ? hybrid_.slots_on_host[id] : -1;
  if (slot >= 0) return slot;
  throw InvalidArgument(cat("hybrid dispatch: a pick of slot ", id, " of ", shape_.num_slots(),
                            " came to rank ", shape_.rank, ", whose host does not have it"));
}

void HybridExchange::return_sums() {
  const Rows made = m_.made.slice(0, arrived_);
  inside_->finish(made);
  results_.send(made, tokens_, team_);
  returning_ = true;
}

}  // namespace

std::unique_ptr<Dispatcher> make_hybrid_dispatcher(const DispatchShape& shape,
                                                   std::span<const int32_t> hosts, int rank) {
  return std::make_unique<DispatcherOf<HybridExchange>>(shape, rank, hosts);
}

}  // namespace trimtab
