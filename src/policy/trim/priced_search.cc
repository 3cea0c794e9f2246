// SPDX-License-Identifier: Apache-2.0
// A token's cost is the sum, over the pairs of a source and a rank where the token goes from there,
// of the price of the pair. Sources are ranks too, or nodes, or one. Each expert has bits for the
// pairs where its picks go for certain, and for those where half of them go; what a token reaches
// follows from the bits of its picks. Where a pick may go to more than two replicas, two of them
// stand for all.
#include "policy/trim/priced_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "base/random.h"
#include "trimtab/policy.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// Temperatures at the start and the end, in parts of the tokens looked at.
constexpr double kHotPrices = 0.004;
constexpr double kColdPrices = 0.0001;
// Exchanges between two looks at whether planning was stopped.
constexpr int64_t kBetweenChecks = 256;

class PricedSearch {
 public:
  PricedSearch(const WireTask& task, const PeakLimits& limits, MutableLayer& layer,
               SlotExchanges& exchanges)
      : task_(task),
        limits_(limits),
        layer_(layer),
        exchanges_(exchanges),
        experts_(task.tokens.num_experts),
        nodes_(task.topology.num_nodes()),
        ranks_(layer.ranks()),
        known_sources_(!task.tokens.source_rank.empty()),
        rows_(num_rows()),
        words_((rows_ * ranks_ + 63) / 64),
        bits_(cells(experts_, 2 * words_)) {
    set_weights();
    for (int e = 0; e < experts_; ++e) set_bits(e);
    take_tokens();
  }

  // Changes the layer into the best placement found.
  void run() {
    if (cost_of_.empty()) return;
    const auto tokens = static_cast<double>(cost_of_.size());
    move_cost_ = task_.move_price * tokens * (known_sources_ ? 1 : rows_) * kUnit;
    const double scale = tokens * (known_sources_ ? 1.0 / rows_ : 1.0) * kUnit;
    std::vector<int32_t> best = layer_.placement();
    double least = total_ + move_cost_ * layer_.moves();
    for (int64_t step = 0; step < task_.steps; ++step) {
      if (step % kBetweenChecks == 0) check_stop(task_.stop);
      const double progress = static_cast<double>(step) / static_cast<double>(task_.steps);
      temperature_ = scale * kHotPrices * std::pow(kColdPrices / kHotPrices, progress);
      if (!choose(progress) || !judge()) continue;
      const double cost = total_ + move_cost_ * layer_.moves();
      if (cost < least - 1e-9) {
        least = cost;
        best = layer_.placement();
      }
    }
    layer_.go_to(best);
  }

 private:
  int32_t node(int rank) const { return task_.topology.node(rank); }
  // Rows are ranks, nodes, or one for all.
  bool from_ranks() const { return rows_ == ranks_; }
  int32_t row(int rank) const { return from_ranks() ? rank : rows_ == nodes_ ? node(rank) : 0; }
  int num_rows() const {
    const int64_t bits = int64_t{ranks_} * ranks_;
    if (bits <= (known_sources_ ? kMostWireBits : kMostBitsOfToken)) return ranks_;
    return int64_t{nodes_} * ranks_ <= kMostWireBits ? nodes_ : 1;
  }

  // The weights of bits by the prices: what a copy to a rank costs on average from the ranks of
  // a source, and from each rank, in parts of the highest price.
  void set_weights() {
    const Table<const double> prices(task_.topology.prices, ranks_);
    const double highest = std::ranges::max(task_.topology.prices);
    const auto rounded = [](double weight) { return std::llround(weight * kParts); };
    std::vector<int> ranks_in(cells(rows_));
    for (int r = 0; r < ranks_; ++r) ++ranks_in[cells(row(r))];
    std::vector<double> from_row(cells(rows_, ranks_));
    for (int s = 0; s < ranks_; ++s) {
      for (int r = 0; r < ranks_; ++r) {
        const double price = highest > 0 ? prices(s, r) / highest : 0;
        rank_weights_.push_back(rounded(price));
        from_row[cells(row(s), ranks_) + cells(r)] += price / ranks_in[cells(row(s))];
      }
    }
    std::ranges::transform(from_row, std::back_inserter(row_weights_), rounded);
  }

  void set_bits(int32_t e) {
    const std::span bits = std::span(bits_).subspan(cells(e, 2 * words_), cells(2 * words_));
    std::ranges::fill(bits, 0);
    const std::span certain = bits.first(cells(words_)), half = bits.last(cells(words_));
    holders_.clear();
    for (const int32_t slot : layer_.slots_of(e)) holders_.push_back(layer_.rank_of(slot));
    std::ranges::sort(holders_);
    holders_.erase(std::ranges::unique(holders_).begin(), holders_.end());
    for (int source = 0; source < rows_ && !holders_.empty(); ++source) {
      if (from_ranks() && std::ranges::binary_search(holders_, source)) continue;
      const int on = from_ranks() ? node(source) : source;
      const bool is_near = (from_ranks() || rows_ == nodes_) && layer_.on_node()(e, on) > 0;
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
    const int bit = source * ranks_ + to;
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
    const int first = known_sources_ ? row(source) * ranks_ : 0;
    const int end = known_sources_ ? first + ranks_ : rows_ * ranks_;
    const int64_t* weights =
        known_sources_ ? rank_weights_.data() + cells(source, ranks_) : row_weights_.data();
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

  // The sum of the weights of the bits that are set; the weight of bit 0 is weights[first].
  static int64_t weigh(uint64_t bits, const int64_t* weights, int64_t first) {
    int64_t sum = 0;
    for (; bits != 0; bits &= bits - 1) sum += weights[first + std::countr_zero(bits)];
    return sum;
  }

  // Chooses an exchange.
  bool choose(double progress) {
    const uint32_t kind = exchanges_.random().below(16);
    only_ranks_ = kind < 4 && progress < 0.5;
    if (only_ranks_) return exchanges_.two_ranks();
    return kind < 13 ? exchanges_.two_slots() : exchanges_.replica();
  }

  // Tries the exchange; returns whether it was made.
  bool judge() {
    const int moves_before = layer_.moves();
    layer_.change(exchanges_.changes());
    // Where two ranks change all they hold, the loads only change places.
    if (!task_.rules.holds(layer_) || (!only_ranks_ && !limits_.hold(layer_))) {
      layer_.undo();
      return false;
    }
    for (const int32_t e : layer_.touched()) set_bits(e);
    ++stamp_;
    old_.clear();
    int64_t change = 0;
    for (const int32_t e : layer_.touched()) {
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
    const double worse = static_cast<double>(change) + move_cost_ * (layer_.moves() - moves_before);
    if (worse <= 0 || exchanges_.random().unit() < std::exp(-worse / temperature_)) {
      total_ += static_cast<double>(change);
      return true;
    }
    layer_.undo();
    for (const int32_t e : layer_.touched()) set_bits(e);
    for (const auto& [token, value] : old_) cost_of_[cells(token)] = value;
    return false;
  }

  static constexpr double kParts = 1 << 16;    // of the highest price
  static constexpr double kUnit = 4 * kParts;  // the cost of a copy that goes for certain

  const WireTask& task_;
  const PeakLimits limits_;
  MutableLayer& layer_;
  SlotExchanges& exchanges_;
  const int experts_, nodes_, ranks_;
  const bool known_sources_;
  const int rows_, words_;               // rows: a source each
  std::vector<uint64_t> bits_;           // [experts, (certain, half), words]
  std::vector<int32_t> holders_, near_;  // scratch of set_bits()
  // [rows, ranks] and [ranks, ranks], in parts of the highest price
  std::vector<int64_t> row_weights_, rank_weights_;

  std::vector<int32_t> picks_;        // [tokens, top_k]
  std::vector<int32_t> source_;       // [tokens] rank, where it is known
  std::vector<int64_t> cost_of_;      // [tokens]
  std::vector<int32_t> first_token_;  // [experts + 1] into token_
  std::vector<int32_t> token_;
  std::vector<uint32_t> seen_;  // [tokens] the last stamp
  uint32_t stamp_ = 0;

  double total_ = 0;      // cost of all tokens, a whole number
  double move_cost_ = 0;  // of one move
  double temperature_ = 0;
  bool only_ranks_ = false;
  std::vector<std::pair<int32_t, int64_t>> old_;  // tokens that changed, with their costs before
};

}  // namespace

void search_prices(const WireTask& task, const PeakLimits& limits, MutableLayer& layer,
                   SlotExchanges& exchanges) {
  PricedSearch(task, limits, layer, exchanges).run();
}

}  // namespace trimtab
