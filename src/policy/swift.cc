// SPDX-License-Identifier: Apache-2.0
#include "policy/swift.h"

#include <algorithm>
#include <numeric>

#include "load/rank_loads.h"
#include "policy/frame.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

constexpr int kNowhere = -1;

// A layer's map on its way from the current one, with the transfers that it needs so far.
class SwiftLayer {
 public:
  SwiftLayer(std::span<const int64_t> load, std::span<const int32_t> current,
             std::span<const int32_t> first_slots, const SwiftOptions& options)
      : options_(options),
        load_(load),
        current_(current),
        first_slots_(first_slots),
        ranks_(first_slots.size() - 1),
        map_(current.begin(), current.end()),
        copies_(replica_counts(current, static_cast<int>(load.size()))),
        source_(current.size(), kNowhere),
        sent_(ranks_ * ranks_, 0) {
    for (size_t r = 0; r < ranks_; ++r) rank_of_.insert(rank_of_.end(), end(r) - begin(r), r);
    update_loads();
    const double total = std::accumulate(loads_.begin(), loads_.end(), 0.0);
    gain_ = options.min_gain * total / static_cast<double>(ranks_);
  }

  std::vector<int32_t> plan() {
    const double before = *std::max_element(loads_.begin(), loads_.end());
    if (peak_to_mean(loads_) <= options_.level_par) return map_;
    while (shift_a_copy()) {
    }
    for (int swaps = 0; swaps < options_.max_swaps && relieve_hottest_rank(); ++swaps) {
    }
    const double after = *std::max_element(loads_.begin(), loads_.end());
    return after < before ? map_ : std::vector<int32_t>(current_.begin(), current_.end());
  }

 private:
  size_t begin(size_t rank) const { return static_cast<size_t>(first_slots_[rank]); }
  size_t end(size_t rank) const { return static_cast<size_t>(first_slots_[rank + 1]); }
  size_t expert(size_t slot) const { return static_cast<size_t>(map_[slot]); }
  double share(size_t e) const { return static_cast<double>(load_[e]) / copies_[e]; }
  void update_loads() { loads_ = rank_loads(map_, first_slots_, load_); }

  static bool contains(std::span<const int32_t> slots, size_t e) {
    return std::find(slots.begin(), slots.end(), static_cast<int32_t>(e)) != slots.end();
  }
  bool holds(std::span<const int32_t> map, size_t rank, size_t e) const {
    return contains(map.subspan(begin(rank), end(rank) - begin(rank)), e);
  }

  // From which rank an expert comes to `rank`: itself when it has the expert already; else, of the
  // ranks that hold it now, the one that sent least there; kNowhere when all have sent what they
  // may.
  int find_source(size_t e, size_t rank) const {
    if (holds(current_, rank, e)) return static_cast<int>(rank);
    int best = kNowhere;
    for (size_t s = 0; s < current_.size(); ++s) {
      if (static_cast<size_t>(current_[s]) != e) continue;
      const int sent = sent_[rank_of_[s] * ranks_ + rank];
      if (sent >= options_.max_per_pair) continue;
      if (best == kNowhere || sent < sent_[static_cast<size_t>(best) * ranks_ + rank])
        best = static_cast<int>(rank_of_[s]);
    }
    return best;
  }

  void count_transfer(size_t slot, int by) {
    if (source_[slot] == kNowhere) return;
    const auto from = static_cast<size_t>(source_[slot]);
    if (from != rank_of_[slot]) sent_[from * ranks_ + rank_of_[slot]] += by;
  }

  // Puts an expert in a slot if the limit per pair of ranks allows it; the transfer that brought
  // the old one is undone.
  bool put(size_t slot, size_t e) {
    count_transfer(slot, -1);
    const int from = find_source(e, rank_of_[slot]);
    if (from == kNowhere) {
      count_transfer(slot, 1);
      return false;
    }
    source_[slot] = from;
    count_transfer(slot, 1);
    map_[slot] = static_cast<int32_t>(e);
    return true;
  }

  // Gives a redundant copy's slot to a hotter expert. False when no such change is worth it and
  // possible.
  bool shift_a_copy() {
    std::vector<size_t> hot(load_.size());
    std::iota(hot.begin(), hot.end(), size_t{0});
    std::vector<size_t> cold = hot;
    std::stable_sort(hot.begin(), hot.end(),
                     [&](size_t a, size_t b) { return share(a) > share(b); });
    std::stable_sort(cold.begin(), cold.end(), [&](size_t a, size_t b) {
      return share_without_one(a) < share_without_one(b);
    });
    for (const size_t e : hot) {
      for (const size_t donor : cold) {
        if (copies_[donor] < 2 || donor == e) continue;
        const double relieved = static_cast<double>(load_[e]) / (copies_[e] + 1);
        if (share(e) - std::max(relieved, share_without_one(donor)) < gain_) break;
        if (shift_copy(donor, e)) return true;
      }
    }
    return false;
  }

  double share_without_one(size_t e) const {
    return static_cast<double>(load_[e]) / std::max(1, copies_[e] - 1);
  }

  bool shift_copy(size_t donor, size_t e) {
    std::vector<size_t> slots;
    for (size_t s = 0; s < map_.size(); ++s) {
      if (expert(s) == donor && !holds(map_, rank_of_[s], e)) slots.push_back(s);
    }
    // The hotter expert goes where it adds least. Its rank is rid of the donor's share as well, the
    // same everywhere.
    std::stable_sort(slots.begin(), slots.end(),
                     [&](size_t a, size_t b) { return loads_[rank_of_[a]] < loads_[rank_of_[b]]; });
    for (const size_t slot : slots) {
      if (!put(slot, e)) continue;
      --copies_[donor];
      ++copies_[e];
      update_loads();
      return true;
    }
    return false;
  }

  struct Swap {
    size_t hot_slot = 0, other_slot = 0;
    double peak = 0;  // of the two ranks afterwards
  };

  // One swap of the hottest rank with the coldest rank that takes at least the gain off it.
  bool relieve_hottest_rank() {
    std::vector<size_t> order(ranks_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return loads_[a] < loads_[b]; });
    const size_t hottest = order.back();
    for (const size_t other : order) {
      if (other == hottest) continue;
      std::vector<Swap> swaps = list_swaps(hottest, other);
      std::stable_sort(swaps.begin(), swaps.end(),
                       [](const Swap& a, const Swap& b) { return a.peak < b.peak; });
      for (const Swap& swap : swaps) {
        if (!apply(swap)) continue;
        update_loads();
        return true;
      }
    }
    return false;
  }

  std::vector<Swap> list_swaps(size_t hottest, size_t other) const {
    std::vector<Swap> swaps;
    for (size_t h = begin(hottest); h < end(hottest); ++h) {
      if (holds(map_, other, expert(h))) continue;
      for (size_t o = begin(other); o < end(other); ++o) {
        if (holds(map_, hottest, expert(o))) continue;
        const double shift = share(expert(h)) - share(expert(o));
        const double peak = std::max(loads_[hottest] - shift, loads_[other] + shift);
        if (loads_[hottest] - peak >= gain_ && shift > 0) swaps.push_back({h, o, peak});
      }
    }
    return swaps;
  }

  bool apply(const Swap& swap) {
    const size_t hot = expert(swap.hot_slot);
    const size_t other = expert(swap.other_slot);
    const int hot_source = source_[swap.hot_slot];
    if (!put(swap.hot_slot, other)) return false;
    if (put(swap.other_slot, hot)) return true;
    count_transfer(swap.hot_slot, -1);
    map_[swap.hot_slot] = static_cast<int32_t>(hot);
    source_[swap.hot_slot] = hot_source;
    count_transfer(swap.hot_slot, 1);
    return false;
  }

  const SwiftOptions options_;
  std::span<const int64_t> load_;
  std::span<const int32_t> current_, first_slots_;
  const size_t ranks_;
  std::vector<int32_t> map_;
  std::vector<int32_t> copies_;  // [experts]
  std::vector<size_t> rank_of_;  // [slots]
  std::vector<int> source_;    // [slots] the rank that an expert comes from; kNowhere: it was there
  std::vector<int> sent_;      // [ranks, ranks] experts from one to another
  std::vector<double> loads_;  // [ranks]
  double gain_ = 0;
};

class SwiftPolicy final : public Policy {
 public:
  std::string_view name() const override { return "swift"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    std::vector<int32_t> proposal;
    for (int layer = 0; layer < problem.load.num_layers; ++layer) {
      const std::vector<int32_t> map =
          swift_map(window_load(problem.load, layer), problem.current.logical(layer),
                    problem.current.first_slots());
      proposal.insert(proposal.end(), map.begin(), map.end());
    }
    return finish_plan(problem, std::move(proposal),
                       {.align_ranks = false, .align_slots = true, .require_gain = true});
  }
};

}  // namespace

std::vector<int32_t> swift_map(std::span<const int64_t> load, std::span<const int32_t> current,
                               std::span<const int32_t> first_slots, const SwiftOptions& options) {
  return SwiftLayer(load, current, first_slots, options).plan();
}

std::unique_ptr<Policy> make_swift_policy(const PolicyOptions&) {
  return std::make_unique<SwiftPolicy>();
}

}  // namespace trimtab
