// SPDX-License-Identifier: Apache-2.0
// Simulated annealing. A token's cost is the sum, over the pairs of a source and a place where the
// token goes from there, of the pair's weight. Sources and places are nodes, and the weight of
// another node is 1; with prices, places are ranks, sources are ranks too or nodes, and weights
// follow from the prices. Each expert has bits for the pairs where its picks go for certain, and
// for those where half of them go; what a token reaches follows from the bits of its picks. Where a
// pick may go to more than two replicas, two of them stand for all.
#include "policy/trim/wire_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
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
        nodes_(task.topology.num_nodes()),
        known_sources_(!task.tokens.source_rank.empty()),
        by_rank_(task.topology.has_prices()),
        rows_(num_rows()),
        places_(by_rank_ ? ranks() : nodes_),
        words_((rows_ * places_ + 63) / 64),
        on_node_(cells(experts_, nodes_)),
        replicas_(cells(experts_)),
        slots_of_(cells(experts_)),
        bits_(cells(experts_, 2 * words_)),
        random_(0x7472696d77697265U + static_cast<uint64_t>(task.layer)) {
    for (int rank = 0; rank < ranks(); ++rank) {
      for (int s = task.slots.first(rank); s < task.slots.end(rank); ++s)
        rank_of_slot_.push_back(rank);
    }
    for (size_t s = 0; s < placement_.size(); ++s) count(static_cast<int>(s), 1);
    if (task.topology.has_prices()) set_weights();
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
    move_cost_ = task_.move_price * tokens * (known_sources_ ? 1 : rows_) * unit_;
    const double scale = tokens * (known_sources_ ? 1.0 / rows_ : 1.0) * unit_;
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

  // Goes on from `best`, a result of search(), with exchanges that are judged by `cost` itself.
  // move_cost: of one move, in the unit of `cost`.
  std::vector<int32_t> polish(const std::vector<int32_t>& best,
                              const std::function<double(std::span<const int32_t>)>& cost,
                              double move_cost, int64_t exchanges) {
    changes_.clear();
    for (int s = 0; s < std::ssize(best); ++s) {
      if (placement_[cells(s)] != best[cells(s)]) changes_.push_back({s, best[cells(s)]});
    }
    swap_in();
    for (int rank = 0; rank < ranks(); ++rank) add_up(rank);
    double least = cost(placement_) + move_cost * moves_;
    for (int64_t i = 0; i < exchanges; ++i) {
      bool level = false;
      if (!choose(static_cast<double>(i) / static_cast<double>(exchanges), level)) continue;
      swap_in();
      saved_loads_ = loads_;
      add_up_touched();
      const auto [window, runs] = peaks();
      if (window <= window_limit_ && runs <= runs_limit_) {
        const double now = cost(placement_) + move_cost * moves_;
        if (now < least - 1e-12) {
          least = now;
          continue;
        }
      }
      swap_in();
      loads_ = saved_loads_;
    }
    return placement_;
  }

 private:
  int ranks() const { return task_.slots.num_ranks(); }
  int32_t node(int rank) const { return task_.topology.node(rank); }
  int32_t place(int rank) const { return by_rank_ ? rank : node(rank); }
  // Rows are ranks, nodes, or one for all.
  bool from_ranks() const { return by_rank_ && rows_ == ranks(); }
  int32_t row(int rank) const { return from_ranks() ? rank : rows_ == nodes_ ? node(rank) : 0; }
  int num_rows() const {
    if (!by_rank_) return nodes_;
    const int64_t bits = int64_t{ranks()} * ranks();
    if (bits <= (known_sources_ ? kMostWireBits : kMostBitsOfToken)) return ranks();
    return int64_t{nodes_} * ranks() <= kMostWireBits ? nodes_ : 1;
  }
  std::span<const int32_t> held(int rank) const {
    return task_.slots.of(rank, std::span<const int32_t>(placement_));
  }

  bool holds(int rank, int32_t expert) const {
    return std::ranges::find(held(rank), expert) != held(rank).end();
  }

  void count(int slot, int32_t change) {
    const int32_t e = placement_[cells(slot)];
    std::vector<int32_t>& slots = slots_of_[cells(e)];
    if (change > 0) {
      slots.push_back(slot);
    } else {
      slots.erase(std::ranges::find(slots, slot));
    }
    on_node_[cells(e, nodes_) + cells(node(rank_of_slot_[cells(slot)]))] += change;
    replicas_[cells(e)] += change;
  }

  // The weights of bits by the prices: what a copy costs to a place, on average from the ranks of a
  // source, and from each rank, in parts of the highest price.
  void set_weights() {
    constexpr double kParts = 1 << 16;
    const Table<const double> prices(task_.topology.prices, ranks());
    const double highest = std::ranges::max(task_.topology.prices);
    unit_ *= kParts;
    std::vector<int> ranks_at(cells(places_)), ranks_in(cells(rows_));
    for (int r = 0; r < ranks(); ++r) {
      ++ranks_at[cells(place(r))];
      ++ranks_in[cells(row(r))];
    }
    std::vector<double> from_row(cells(rows_, places_)), from_rank(cells(ranks(), places_));
    for (int s = 0; s < ranks(); ++s) {
      for (int r = 0; r < ranks(); ++r) {
        const double price = highest > 0 ? prices(s, r) / highest / ranks_at[cells(place(r))] : 0;
        from_rank[cells(s, places_) + cells(place(r))] += price;
        from_row[cells(row(s), places_) + cells(place(r))] += price / ranks_in[cells(row(s))];
      }
    }
    const auto rounded = [&](double weight) { return std::llround(weight * kParts); };
    std::ranges::transform(from_row, std::back_inserter(row_weights_), rounded);
    std::ranges::transform(from_rank, std::back_inserter(rank_weights_), rounded);
  }

  void set_bits(int32_t e) {
    const std::span bits = std::span(bits_).subspan(cells(e, 2 * words_), cells(2 * words_));
    std::ranges::fill(bits, 0);
    const std::span certain = bits.first(cells(words_)), half = bits.last(cells(words_));
    holders_.clear();
    for (const int32_t slot : slots_of_[cells(e)])
      holders_.push_back(place(rank_of_slot_[cells(slot)]));
    std::ranges::sort(holders_);
    holders_.erase(std::ranges::unique(holders_).begin(), holders_.end());
    for (int source = 0; source < rows_ && !holders_.empty(); ++source) {
      if (from_ranks() && std::ranges::binary_search(holders_, source)) continue;
      const int on = from_ranks() ? node(source) : source;
      const bool is_near =
          (from_ranks() || rows_ == nodes_) && on_node_[cells(e, nodes_) + cells(on)] > 0;
      if (is_near && !by_rank_) continue;
      near_.clear();
      for (const int32_t to : holders_) {
        if (is_near && node(to) == on) near_.push_back(to);
      }
      const std::vector<int32_t>& choice = is_near ? near_ : holders_;
      if (choice.size() == 1) {
        set_bit(certain, source, choice[0]);
        continue;
      }
      // Chance decides, so that the choices of two experts agree no more often than they should.
      const size_t draw = split_mix64(cells(e, rows_) + cells(source)) % choice.size();
      set_bit(half, source, choice[draw]);
      set_bit(half, source, choice[(draw + choice.size() / 2) % choice.size()]);
    }
  }
  void set_bit(std::span<uint64_t> bits, int source, int32_t to) const {
    const int bit = source * places_ + to;
    bits[cells(bit / 64)] |= uint64_t{1} << static_cast<unsigned>(bit % 64);
  }

  // Lists the tokens, and those of each expert.
  void take_tokens() {
    const TokenSample& sample = task_.tokens;
    const int64_t stride = std::max<int64_t>(
        1, (sample.num_tokens() + task_.max_tokens - 1) / std::max<int64_t>(1, task_.max_tokens));
    std::vector<int32_t> number(cells(experts_) + 1);
    for (int64_t t = 0; t < sample.num_tokens(); t += stride) {
      const std::span<const int32_t> picks = sample.picks(t, task_.layer);
      picks_.insert(picks_.end(), picks.begin(), picks.end());
      if (known_sources_) source_.push_back(sample.source_rank[cells(t)]);
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
    for (int32_t t = 0; t < std::ssize(cost_of_); ++t)
      total_ += static_cast<double>(cost_of_[cells(t)] = cost(t));
  }

  int64_t cost(int32_t token) const {
    const int top_k = task_.tokens.top_k;
    const int32_t* picks = picks_.data() + cells(token, top_k);
    // The bits of the token's source, or of all.
    const int source = known_sources_ ? source_[cells(token)] : 0;
    const int first = known_sources_ ? row(source) * places_ : 0;
    const int end = known_sources_ ? first + places_ : rows_ * places_;
    const int64_t* weights = row_weights_.empty() ? nullptr
                             : known_sources_     ? rank_weights_.data() + cells(source, places_)
                                                  : row_weights_.data();
    int64_t sum = 0;
    for (int w = first / 64; 64 * w < end; ++w) {
      // What is reached for certain, by one half, and by two or more, which are taken for two.
      uint64_t certain = 0, half = 0, halves = 0;
      for (int k = 0; k < top_k; ++k) {
        const uint64_t* bits = bits_.data() + cells(picks[k], 2 * words_) + cells(w);
        certain |= bits[0];
        halves |= half & bits[words_];
        half |= bits[words_];
      }
      uint64_t mine = ~uint64_t{0};
      if (64 * w < first) mine <<= static_cast<unsigned>(first - 64 * w);
      if (64 * w + 64 > end) mine &= ~uint64_t{0} >> static_cast<unsigned>(64 * w + 64 - end);
      const auto sum_of = [&](uint64_t set) { return weigh(set & mine, weights, 64 * w - first); };
      sum += 4 * sum_of(certain) + 3 * sum_of(halves & ~certain) +
             2 * sum_of(half & ~halves & ~certain);
    }
    return sum;
  }

  // The sum of the weights of the bits that are set, bit 0 of weights[first]; null: all weigh 1.
  static int64_t weigh(uint64_t bits, const int64_t* weights, int64_t first) {
    if (weights == nullptr) return std::popcount(bits);
    int64_t sum = 0;
    for (; bits != 0; bits &= bits - 1) sum += weights[first + std::countr_zero(bits)];
    return sum;
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
    bool level = false;
    return choose(progress, level) && judge(level);
  }

  // Chooses an exchange. level: whether the loads only change places.
  bool choose(double progress, bool& level) {
    const uint32_t kind = random_.below(16);
    changes_.clear();
    level = kind < 4 && progress < 0.5;
    if (level) return propose_ranks();
    return kind < 13 ? propose_slots() : propose_replica();
  }

  // Two ranks, without prices of different nodes, change all they hold.
  bool propose_ranks() {
    const int a = below(ranks()), b = below(ranks());
    if (place(a) == place(b) || task_.slots.count(a) != task_.slots.count(b)) return false;
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
        const int64_t now = cost(token);
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
  const int experts_, nodes_;
  const bool known_sources_;
  const bool by_rank_;               // places are ranks; else nodes
  const int rows_, places_, words_;  // rows: a source each
  std::vector<int32_t> rank_of_slot_;
  std::vector<int32_t> on_node_;                // [experts, nodes] replicas
  std::vector<int32_t> replicas_;               // [experts]
  std::vector<std::vector<int32_t>> slots_of_;  // [experts] the slots that hold it
  std::vector<uint64_t> bits_;                  // [experts, (certain, half), words]
  std::vector<int32_t> holders_, near_;         // scratch of set_bits()
  // [rows, places] and [ranks, places], in parts of the highest price; empty: all are 1.
  std::vector<int64_t> row_weights_, rank_weights_;
  double unit_ = 4;  // of a token's cost: one copy that goes for certain, of the highest price
  Random random_;

  std::vector<int32_t> picks_;        // [tokens, top_k]
  std::vector<int32_t> source_;       // [tokens] rank, where it is known
  std::vector<int64_t> cost_of_;      // [tokens]
  std::vector<int32_t> first_token_;  // [experts + 1] into token_
  std::vector<int32_t> token_;
  std::vector<uint32_t> seen_;  // [tokens] the last stamp
  uint32_t stamp_ = 0;

  std::vector<double> loads_, saved_loads_;  // [loads, ranks]
  double window_limit_ = 0, runs_limit_ = 0;
  double total_ = 0;      // cost of all tokens, a whole number
  double move_cost_ = 0;  // of one move
  int moves_ = 0;         // more than at the start
  double temperature_ = 0;
  std::vector<Change> changes_;
  std::vector<int32_t> touched_;                  // experts, ascending
  std::vector<std::pair<int32_t, int64_t>> old_;  // tokens that changed, with their costs before
};

}  // namespace

std::vector<int32_t> search_wires(const WireTask& task, std::vector<int32_t> start) {
  const std::vector<int32_t> from = start;
  WireSearch search(task, std::move(start));
  std::vector<int32_t> found = search.search();
  // The search counts one replica for all that a pick may go to, so its result is judged once more
  // as it is measured, and where that is cheap, it goes on so.
  const bool prices = task.topology.has_prices();
  const auto cost = [&](std::span<const int32_t> placement) {
    return prices ? cost_of_copies(placement, task.slots.firsts(), task.topology, task.tokens,
                                   task.layer)
                  : copies_between_nodes(placement, task.slots.firsts(), task.topology.node_of_rank,
                                         task.tokens, task.layer);
  };
  constexpr int64_t kPolishPicks = 20'000'000, kWorthwhile = 200;
  const int64_t picks = task.tokens.num_tokens() * task.tokens.top_k *
                        (task.tokens.source_rank.empty() ? 1 + task.topology.num_nodes() : 1);
  const int64_t exchanges = std::min(task.steps, kPolishPicks / std::max<int64_t>(1, picks));
  if (exchanges >= kWorthwhile) {
    const double unit = prices ? std::ranges::max(task.topology.prices) : 1;
    found = search.polish(found, cost, task.move_price * unit, exchanges);
  }
  return cost(found) < cost(from) ? found : from;
}

}  // namespace trimtab
