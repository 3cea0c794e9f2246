// SPDX-License-Identifier: Apache-2.0
#include "policy/swift.h"

#include <algorithm>
#include <numeric>

#include "load/replicas.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"
#include "trimtab/par.h"

namespace trimtab {
namespace {

constexpr int kNowhere = -1;

double per_replica(int64_t load, int32_t replicas) {
  return static_cast<double>(load) / replicas;
}

// A layer's placement on its way from the current one, with the transfers that it needs so far.
class SwiftLayer {
 public:
  SwiftLayer(std::span<const int64_t> load, std::span<const int32_t> current, SlotRanges slots,
             const SwiftOptions& options)
      : options_(options),
        load_(load),
        current_(current),
        slots_(slots),
        experts_(static_cast<int>(load.size())),
        placement_(current.begin(), current.end()),
        replicas_(replica_counts(current, experts_)),
        source_(current.size(), kNowhere),
        sent_(slots.num_ranks(), slots.num_ranks(), 0) {
    for (int r = 0; r < slots.num_ranks(); ++r) {
      rank_of_.insert(rank_of_.end(), slots.count(r), r);
    }
    update_loads();
    const double total = std::accumulate(loads_.begin(), loads_.end(), 0.0);
    gain_ = options.min_gain * total / slots.num_ranks();
  }

  std::vector<int32_t> plan() {
    const double before = std::ranges::max(loads_);
    if (par(loads_) <= options_.level_par) return placement_;
    while (give_up_a_replica()) {
    }
    for (int swaps = 0; swaps < options_.max_swaps && relieve_hottest_rank(); ++swaps) {
    }
    return std::ranges::max(loads_) < before ? placement_ : to_vector(current_);
  }

 private:
  double share(int32_t e) const { return per_replica(load_[e], replicas_[e]); }
  double share_without_one(int32_t e) const {
    return per_replica(load_[e], std::max(1, replicas_[e] - 1));
  }
  void update_loads() { loads_ = rank_loads(placement_, slots_.firsts(), load_); }

  bool holds(std::span<const int32_t> placement, int rank, int32_t e) const {
    const std::span<const int32_t> on_rank = slots_.of(rank, placement);
    return std::ranges::find(on_rank, e) != on_rank.end();
  }

  // The rank from which an expert comes to `rank`: itself when it has the expert already; else, of
  // the ranks that hold it now, the one that sent least there; kNowhere when all have sent what
  // they may.
  int find_source(int32_t e, int rank) const {
    if (holds(current_, rank, e)) return rank;
    int best = kNowhere;
    for (int s = 0; s < slots_.num_slots(); ++s) {
      if (current_[s] != e) continue;
      const int sent = sent_(rank_of_[s], rank);
      if (sent >= options_.max_per_pair) continue;
      if (best == kNowhere || sent < sent_(best, rank)) best = rank_of_[s];
    }
    return best;
  }

  void count_transfer(int slot, int by) {
    const int from = source_[slot];
    if (from != kNowhere && from != rank_of_[slot]) sent_(from, rank_of_[slot]) += by;
  }

  // Puts an expert in a slot if the limit per pair of ranks allows it; the transfer that brought
  // the old one is undone.
  bool put(int slot, int32_t e) {
    count_transfer(slot, -1);
    const int from = find_source(e, rank_of_[slot]);
    if (from == kNowhere) {
      count_transfer(slot, 1);
      return false;
    }
    source_[slot] = from;
    count_transfer(slot, 1);
    placement_[slot] = e;
    return true;
  }

  // Gives a redundant replica's slot to a hotter expert. False when no such change is worth it and
  // possible.
  bool give_up_a_replica() {
    const std::vector<int32_t> hot =
        sorted_ids(experts_, [&](int32_t a, int32_t b) { return share(a) > share(b); });
    const std::vector<int32_t> cold = sorted_ids(experts_, [&](int32_t a, int32_t b) {
      return share_without_one(a) < share_without_one(b);
    });
    for (const int32_t e : hot) {
      for (const int32_t donor : cold) {
        if (replicas_[donor] < 2 || donor == e) continue;
        const double relieved = per_replica(load_[e], replicas_[e] + 1);
        if (share(e) - std::max(relieved, share_without_one(donor)) < gain_) break;
        if (replace_replica(donor, e)) return true;
      }
    }
    return false;
  }

  bool replace_replica(int32_t donor, int32_t e) {
    std::vector<int> slots;
    for (int s = 0; s < slots_.num_slots(); ++s) {
      if (placement_[s] == donor && !holds(placement_, rank_of_[s], e)) slots.push_back(s);
    }
    // The hotter expert goes where it adds least. Its rank is rid of the donor's share as well, the
    // same everywhere.
    std::ranges::stable_sort(slots, {}, [&](int slot) { return loads_[rank_of_[slot]]; });
    for (const int slot : slots) {
      if (!put(slot, e)) continue;
      --replicas_[donor];
      ++replicas_[e];
      update_loads();
      return true;
    }
    return false;
  }

  struct Swap {
    int hot_slot = 0, other_slot = 0;
    double peak = 0;  // the larger load of the two ranks afterwards
  };

  // Makes one swap of the hottest rank with the coldest rank that lowers its load by the gain.
  bool relieve_hottest_rank() {
    const std::vector<int32_t> order =
        sorted_ids(slots_.num_ranks(), [&](int a, int b) { return loads_[a] < loads_[b]; });
    const int hottest = order.back();
    for (const int other : order) {
      if (other == hottest) continue;
      std::vector<Swap> swaps = list_swaps(hottest, other);
      std::ranges::stable_sort(swaps, {}, &Swap::peak);
      for (const Swap& swap : swaps) {
        if (!apply(swap)) continue;
        update_loads();
        return true;
      }
    }
    return false;
  }

  std::vector<Swap> list_swaps(int hottest, int other) const {
    std::vector<Swap> swaps;
    for (int h = slots_.first(hottest); h < slots_.end(hottest); ++h) {
      if (holds(placement_, other, placement_[h])) continue;
      for (int o = slots_.first(other); o < slots_.end(other); ++o) {
        if (holds(placement_, hottest, placement_[o])) continue;
        const double shift = share(placement_[h]) - share(placement_[o]);
        const double peak = std::max(loads_[hottest] - shift, loads_[other] + shift);
        if (loads_[hottest] - peak >= gain_ && shift > 0) swaps.push_back({h, o, peak});
      }
    }
    return swaps;
  }

  bool apply(const Swap& swap) {
    const int32_t hot = placement_[swap.hot_slot];
    const int32_t other = placement_[swap.other_slot];
    const int hot_source = source_[swap.hot_slot];
    if (!put(swap.hot_slot, other)) return false;
    if (put(swap.other_slot, hot)) return true;
    count_transfer(swap.hot_slot, -1);
    placement_[swap.hot_slot] = hot;
    source_[swap.hot_slot] = hot_source;
    count_transfer(swap.hot_slot, 1);
    return false;
  }

  const SwiftOptions options_;
  std::span<const int64_t> load_;
  std::span<const int32_t> current_;
  SlotRanges slots_;
  const int experts_;
  std::vector<int32_t> placement_;
  std::vector<int32_t> replicas_;  // [experts]
  std::vector<int> rank_of_;       // [slots]
  // [slots] the rank that an expert comes from; kNowhere: it was there
  std::vector<int> source_;
  Matrix<int> sent_;           // [ranks, ranks] experts from one to another
  std::vector<double> loads_;  // [ranks]
  double gain_ = 0;
};

class SwiftPolicy final : public Policy {
 public:
  std::string_view name() const override { return "swift"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    refuse_rules(problem, name());
    const auto plan_layer = [&](int layer) {
      return swift_placement(window_load(problem.load, layer), problem.current.logical(layer),
                             problem.current.first_slots());
    };
    return finish_plan(problem, plan_layers(problem, plan_layer),
                       {.align_ranks = false, .align_slots = true, .require_gain = true});
  }
};

}  // namespace

std::vector<int32_t> swift_placement(std::span<const int64_t> load,
                                     std::span<const int32_t> current, SlotRanges slots,
                                     const SwiftOptions& options) {
  return SwiftLayer(load, current, slots, options).plan();
}

std::unique_ptr<Policy> make_swift_policy(const PolicyOptions&) {
  return std::make_unique<SwiftPolicy>();
}

}  // namespace trimtab
