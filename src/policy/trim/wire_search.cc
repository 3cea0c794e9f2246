// SPDX-License-Identifier: Apache-2.0
// Simulated annealing. A token's cost is the number of (source node, other node) pairs for which
// the token goes from the one to the other. Each expert has one bit for each such pair, so the cost
// of a token is the number of bits in the union of its picks' bits. Where an expert has replicas on
// some other nodes, but not on the source's own, one of them stands for all.
#include "policy/trim/wire_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

#include "base/random.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// Temperatures at the start and the end, in parts of the tokens looked at.
constexpr double kHot = 0.004;
constexpr double kCold = 0.0001;

class WireSearch {
 public:
  WireSearch(const WireTask& task, std::vector<int32_t> start)
      : task_(task),
        placement_(std::move(start)),
        experts_(task.tokens.num_experts),
        nodes_(*std::ranges::max_element(task.node_of_rank) + 1),
        words_((nodes_ * nodes_ + 63) / 64),
        on_node_(cells(experts_, nodes_)),
        replicas_(cells(experts_)),
        bits_(cells(experts_, words_)),
        random_(0x7472696d77697265U + static_cast<uint64_t>(task.layer)) {
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int s = task.slots.first(rank); s < task.slots.end(rank); ++s)
        rank_of_slot_.push_back(rank);
    }
    for (size_t s = 0; s < placement_.size(); ++s) count(static_cast<int>(s), 1);
    for (int e = 0; e < experts_; ++e) set_bits(e);
    take_tokens();
    loads_.resize(cells(std::ssize(task.loads), ranks()));
    for (int rank = 0; rank < ranks(); ++rank) add_up(rank);
    const auto [window, runs] = peaks();
    window_limit_ = window * (1 + task.slack);
    runs_limit_ = runs * (1 + task.slack);
  }

  std::vector<int32_t> search() {
    if (cost_of_.empty()) return placement_;
    const auto tokens = static_cast<double>(cost_of_.size());
    move_cost_ = task_.move_price * tokens * (known_sources_ ? 1 : nodes_);
    const double scale = tokens * (known_sources_ ? 1.0 / nodes_ : 1.0);
    double cost = total_;
    std::vector<int32_t> best = placement_;
    double least = cost;
    for (int64_t step = 0; step < task_.steps; ++step) {
      const double progress = static_cast<double>(step) / static_cast<double>(task_.steps);
      temperature_ = scale * kHot * std::pow(kCold / kHot, progress);
      if (!propose(progress)) continue;
      cost = total_ + move_cost_ * moves_;
      if (cost < least - 1e-9) {
        least = cost;
        best = placement_;
      }
    }
    return best;
  }

 private:
  int ranks() const { return task_.slots.num_ranks(); }
  int32_t node(int rank) const { return task_.node_of_rank[cells(rank)]; }
  std::span<const int32_t> held(int rank) const {
    return task_.slots.of(rank, std::span<const int32_t>(placement_));
  }

  bool holds(int rank, int32_t expert) const {
    return std::ranges::find(held(rank), expert) != held(rank).end();
  }

  void count(int slot, int32_t change) {
    const int32_t e = placement_[cells(slot)];
    on_node_[cells(e, nodes_) + cells(node(rank_of_slot_[cells(slot)]))] += change;
    replicas_[cells(e)] += change;
  }

  void set_bits(int32_t e) {
    const std::span bits = std::span(bits_).subspan(cells(e, words_), cells(words_));
    std::ranges::fill(bits, 0);
    const int32_t* on_node = on_node_.data() + cells(e, nodes_);
    std::array<int32_t, kMostWireNodes> holders{};
    int num_holders = 0;
    for (int n = 0; n < nodes_; ++n) {
      if (on_node[n] > 0) holders[cells(num_holders++)] = n;
    }
    int turn = e;
    for (int source = 0; source < nodes_ && num_holders > 0; ++source) {
      if (on_node[source] > 0) continue;
      const int bit = source * nodes_ + holders[cells(turn++ % num_holders)];
      bits[cells(bit / 64)] |= uint64_t{1} << static_cast<unsigned>(bit % 64);
    }
  }

  // Lists the tokens, and those of each expert.
  void take_tokens() {
    const TokenSample& sample = task_.tokens;
    const int64_t stride = std::max<int64_t>(
        1, (sample.num_tokens() + task_.max_tokens - 1) / std::max<int64_t>(1, task_.max_tokens));
    known_sources_ = !sample.source_rank.empty();
    std::vector<int32_t> number(cells(experts_) + 1);
    for (int64_t t = 0; t < sample.num_tokens(); t += stride) {
      const std::span<const int32_t> picks = sample.picks(t, task_.layer);
      picks_.insert(picks_.end(), picks.begin(), picks.end());
      if (known_sources_) source_.push_back(node(sample.source_rank[cells(t)]));
      for (const int32_t e : picks) ++number[cells(e) + 1];
      cost_of_.push_back(0);
    }
    for (size_t e = 1; e < number.size(); ++e) number[e] += number[e - 1];
    first_token_ = number;
    token_.resize(picks_.size());
    const int top_k = sample.top_k;
    for (size_t i = 0; i < picks_.size(); ++i)
      token_[cells(number[cells(picks_[i])]++)] = static_cast<int32_t>(i) / top_k;
    seen_.resize(cost_of_.size());
    for (int32_t t = 0; t < std::ssize(cost_of_); ++t) total_ += cost_of_[cells(t)] = cost(t);
  }

  int32_t cost(int32_t token) const {
    const int top_k = task_.tokens.top_k;
    const int32_t* picks = picks_.data() + cells(token, top_k);
    int32_t sum = 0;
    for (int w = 0; w < words_; ++w) {
      uint64_t reached = 0;
      for (int k = 0; k < top_k; ++k) reached |= bits_[cells(picks[k], words_) + cells(w)];
      if (known_sources_) reached &= row(source_[cells(token)], w);
      sum += std::popcount(reached);
    }
    return sum;
  }

  // The bits of one source node in a word.
  uint64_t row(int source, int word) const {
    uint64_t mask = 0;
    for (int n = 0; n < nodes_; ++n) {
      const int bit = source * nodes_ + n;
      if (bit / 64 == word) mask |= uint64_t{1} << static_cast<unsigned>(bit % 64);
    }
    return mask;
  }

  void add_up(int rank) {
    for (size_t v = 0; v < task_.loads.size(); ++v) {
      double sum = 0;
      for (const int32_t e : held(rank)) sum += task_.loads[v][cells(e)] / replicas_[cells(e)];
      loads_[v * cells(ranks()) + cells(rank)] = sum;
    }
  }

  // The peak of the window, and the sum of those of the runs over their means.
  std::pair<double, double> peaks() const {
    double window = 0, runs = 0;
    for (size_t v = 0; v < task_.loads.size(); ++v) {
      const double* loads = loads_.data() + v * cells(ranks());
      const double peak = *std::max_element(loads, loads + ranks());
      if (v == 0) {
        window = peak;
      } else {
        runs += peak;
      }
    }
    return {window, runs};
  }

  struct Change {
    int slot;
    int32_t expert;
  };

  int below(int n) { return static_cast<int>(random_.below(static_cast<uint32_t>(n))); }

  // Tries one exchange; returns whether it was made.
  bool propose(double progress) {
    const uint32_t kind = random_.below(16);
    changes_.clear();
    bool level = false;  // the loads only change places
    if (kind < 4 && progress < 0.5) {
      if (!propose_ranks()) return false;
      level = true;
    } else if (kind < 13) {
      if (!propose_slots()) return false;
    } else if (!propose_replica()) {
      return false;
    }
    return judge(level);
  }

  // Two ranks of different nodes change all they hold.
  bool propose_ranks() {
    const int a = below(ranks()), b = below(ranks());
    if (node(a) == node(b) || task_.slots.count(a) != task_.slots.count(b)) return false;
    for (int i = 0; i < task_.slots.count(a); ++i) {
      const int s = task_.slots.first(a) + i, t = task_.slots.first(b) + i;
      changes_.push_back({s, placement_[cells(t)]});
      changes_.push_back({t, placement_[cells(s)]});
    }
    return true;
  }

  // Two slots of different ranks change what they hold.
  bool propose_slots() {
    const int num_slots = task_.slots.num_slots();
    const int s = below(num_slots), t = below(num_slots);
    const int a = rank_of_slot_[cells(s)], b = rank_of_slot_[cells(t)];
    const int32_t e = placement_[cells(s)], f = placement_[cells(t)];
    if (a == b || e == f || holds(b, e) || holds(a, f)) return false;
    changes_ = {{s, f}, {t, e}};
    return true;
  }

  // A slot whose expert has others gets another expert.
  bool propose_replica() {
    const int s = below(task_.slots.num_slots());
    const int32_t f = below(experts_);
    if (replicas_[cells(placement_[cells(s)])] < 2 || holds(rank_of_slot_[cells(s)], f))
      return false;
    changes_ = {{s, f}};
    return true;
  }

  // Makes the changes, which then hold what was there before.
  void swap_in() {
    touched_.clear();
    for (Change& change : changes_) {
      count(change.slot, -1);
      touched_.push_back(placement_[cells(change.slot)]);
      touched_.push_back(change.expert);
      moves_ -= moved(change.slot);
      std::swap(placement_[cells(change.slot)], change.expert);
      moves_ += moved(change.slot);
      count(change.slot, 1);
    }
    std::ranges::sort(touched_);
    touched_.erase(std::ranges::unique(touched_).begin(), touched_.end());
  }

  int moved(int slot) const {
    if (task_.current.empty() || task_.move_price == 0) return 0;
    const auto now = task_.slots.of(rank_of_slot_[cells(slot)], task_.current);
    return std::ranges::find(now, placement_[cells(slot)]) == now.end() ? 1 : 0;
  }

  // Sums the loads of the ranks that the changes concern anew: all that hold a touched expert.
  void add_up_touched() {
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto is_touched = [&](int32_t e) { return std::ranges::binary_search(touched_, e); };
      const bool changed = std::ranges::any_of(held(rank), is_touched) ||
                           std::ranges::any_of(changes_, [&](const Change& c) {
                             return rank_of_slot_[cells(c.slot)] == rank;
                           });
      if (changed) add_up(rank);
    }
  }

  bool judge(bool level) {
    const int moves_before = moves_;
    swap_in();
    if (!level) {
      saved_loads_ = loads_;
      add_up_touched();
      const auto [window, runs] = peaks();
      if (window > window_limit_ || runs > runs_limit_) {
        swap_in();
        loads_ = saved_loads_;
        return false;
      }
    }
    for (const int32_t e : touched_) set_bits(e);
    ++stamp_;
    old_.clear();
    int64_t change = 0;
    for (const int32_t e : touched_) {
      for (int32_t i = first_token_[cells(e)]; i < first_token_[cells(e) + 1]; ++i) {
        const int32_t token = token_[cells(i)];
        if (seen_[cells(token)] == stamp_) continue;
        seen_[cells(token)] = stamp_;
        const int32_t now = cost(token);
        if (now == cost_of_[cells(token)]) continue;
        old_.emplace_back(token, cost_of_[cells(token)]);
        change += now - cost_of_[cells(token)];
        cost_of_[cells(token)] = now;
      }
    }
    const double worse = static_cast<double>(change) + move_cost_ * (moves_ - moves_before);
    if (worse <= 0 || random_.unit() < std::exp(-worse / temperature_)) {
      total_ += static_cast<double>(change);
      if (level) {
        for (const Change& c : changes_) add_up(rank_of_slot_[cells(c.slot)]);
      }
      return true;
    }
    swap_in();
    if (!level) loads_ = saved_loads_;
    for (const int32_t e : touched_) set_bits(e);
    for (const auto& [token, value] : old_) cost_of_[cells(token)] = value;
    return false;
  }

  const WireTask& task_;
  std::vector<int32_t> placement_;
  const int experts_, nodes_, words_;
  std::vector<int32_t> rank_of_slot_;
  std::vector<int32_t> on_node_;   // [experts, nodes] replicas
  std::vector<int32_t> replicas_;  // [experts]
  std::vector<uint64_t> bits_;     // [experts, words]
  Random random_;

  bool known_sources_ = false;
  std::vector<int32_t> picks_;        // [tokens, top_k]
  std::vector<int32_t> source_;       // [tokens] node, where it is known
  std::vector<int32_t> cost_of_;      // [tokens]
  std::vector<int32_t> first_token_;  // [experts + 1] into token_
  std::vector<int32_t> token_;
  std::vector<uint32_t> seen_;  // [tokens] the last stamp
  uint32_t stamp_ = 0;

  std::vector<double> loads_, saved_loads_;  // [loads, ranks]
  double window_limit_ = 0, runs_limit_ = 0;
  double total_ = 0;      // cost of all tokens
  double move_cost_ = 0;  // of one move
  int moves_ = 0;         // more than at the start
  double temperature_ = 0;
  std::vector<Change> changes_;
  std::vector<int32_t> touched_;                  // experts, ascending
  std::vector<std::pair<int32_t, int32_t>> old_;  // tokens that changed, with their costs before
};

}  // namespace

std::vector<int32_t> search_wires(const WireTask& task, std::vector<int32_t> start) {
  const std::vector<int32_t> from = start;
  std::vector<int32_t> found = WireSearch(task, std::move(start)).search();
  // The search counts one replica for all on other nodes, so its result is judged once more as it
  // is measured.
  const auto copies = [&](std::span<const int32_t> placement) {
    return copies_between_nodes(placement, task.slots.firsts(), task.node_of_rank, task.tokens,
                                task.layer);
  };
  return copies(found) < copies(from) ? found : from;
}

}  // namespace trimtab
