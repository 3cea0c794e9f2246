// SPDX-License-Identifier: Apache-2.0
#include "policy/flashlb/flashlb.h"

#include <algorithm>
#include <queue>

#include "policy/flashlb/flash_pack.h"
#include "policy/layer_placement.h"

namespace trimtab {
namespace {

// A plan in which the first groups are decided.
struct Partial {
  std::vector<int32_t> replicas;  // [experts], 1 for experts of groups to come
  int extra = 0;                  // replicas that those may still get
  double score = 0;               // of the best placement that was looked ahead to
};

class FlashSearch {
 public:
  FlashSearch(const EpisodeStats& stats, SlotRanges slots, const FlashOptions& options)
      : options_(options),
        pack_(stats, slots, options.z),
        experts_(stats.num_experts),
        order_(sorted_ids(experts_, [&](int a, int b) { return pack_.risk(a) > pack_.risk(b); })),
        max_replicas_(
            std::max(ranks_with_slots(slots), (slots.num_slots() + experts_ - 1) / experts_)) {}

  FlashPlacement run() {
    const int experts = experts_;
    const int depth = std::max(1, options_.depth);
    const int group = (experts + depth - 1) / depth;
    std::vector<Partial> beam = {
        {std::vector<int32_t>(experts, 1), pack_.num_slots() - experts, 0}};
    look_ahead(greedy(beam.front(), 0, experts));
    for (int begin = 0; begin + group < experts && best_.score > 1; begin += group) {
      std::vector<Partial> next;
      for (const Partial& partial : beam) expand(partial, begin, begin + group, next);
      if (next.empty()) break;
      std::stable_sort(next.begin(), next.end(),
                       [](const Partial& a, const Partial& b) { return a.score < b.score; });
      if (std::ssize(next) > options_.beam) next.resize(options_.beam);
      beam = std::move(next);
    }
    return std::move(best_);
  }

 private:
  // The experts of order_[begin, end) that get the next replicas, one after the other, when each
  // goes to the riskiest share.
  std::vector<int32_t> greedy(const Partial& partial, int begin, int end) const {
    using Share = std::pair<double, int32_t>;
    const auto less = [](const Share& a, const Share& b) {
      return a.first < b.first || (a.first == b.first && a.second > b.second);
    };
    std::priority_queue<Share, std::vector<Share>, decltype(less)> queue(less);
    std::vector<int32_t> replicas = partial.replicas;
    for (int i = begin; i < end; ++i) {
      const int32_t e = order_[i];
      if (replicas[e] < max_replicas_) queue.push({pack_.risk(e), e});
    }
    std::vector<int32_t> receivers;
    while (std::ssize(receivers) < partial.extra && !queue.empty()) {
      const int32_t e = queue.top().second;
      queue.pop();
      receivers.push_back(e);
      const int32_t now = ++replicas[e];
      if (now < max_replicas_) queue.push({pack_.risk(e) / now, e});
    }
    return receivers;
  }

  // Scores the placement of the greedy plan for all experts.
  void look_ahead(const std::vector<int32_t>& receivers) {
    std::vector<int32_t> replicas(experts_, 1);
    for (const int32_t e : receivers) ++replicas[e];
    best_.experts = pack_.pack(replicas);
    best_.score = pack_.score(best_.experts);
  }

  // Tries numbers of extra replicas for the group order_[begin, end), from the greedy number
  // downwards and upwards.
  void expand(const Partial& partial, int begin, int end, std::vector<Partial>& next) {
    const std::vector<int32_t> in_group = greedy(partial, begin, end);
    const std::vector<int32_t> behind = greedy(partial, end, experts_);
    const auto group_begin = order_.begin() + begin;
    const auto group_end = order_.begin() + end;
    int likely = 0;
    for (const int32_t e : greedy(partial, begin, experts_)) {
      likely += std::find(group_begin, group_end, e) != group_end ? 1 : 0;
    }
    const auto try_here = [&](int here) {
      const int rest = partial.extra - here;
      if (here < 0 || here > std::ssize(in_group)) return false;
      if (rest < 0 || rest > std::ssize(behind)) return false;
      try_number(partial, std::span(in_group).first(here), std::span(behind).first(rest), next);
      return true;
    };
    try_here(likely);
    for (const int direction : {-1, 1}) {
      int vain = 0;
      for (int here = likely + direction; vain < options_.width; here += direction) {
        const double best_before = best_.score;
        if (!try_here(here)) break;
        vain = best_.score < best_before ? 0 : vain + 1;
      }
    }
  }

  void try_number(const Partial& partial, std::span<const int32_t> here,
                  std::span<const int32_t> later, std::vector<Partial>& next) {
    Partial tried = partial;
    for (const int32_t e : here) {
      ++tried.replicas[e];
      --tried.extra;
    }
    std::vector<int32_t> replicas = tried.replicas;
    for (const int32_t e : later) ++replicas[e];
    if (pack_.score_bound(replicas) >= best_.score) return;
    std::vector<int32_t> placement = pack_.pack(replicas);
    tried.score = pack_.score(placement);
    if (tried.score < best_.score) best_ = {std::move(placement), tried.score};
    next.push_back(std::move(tried));
  }

  const FlashOptions options_;
  FlashPack pack_;
  const int experts_;
  const std::vector<int32_t> order_;  // experts, riskiest first
  const int max_replicas_;            // no use of two on one rank, unless slots exceed experts
  FlashPlacement best_;
};

}  // namespace

FlashPlacement flash_search(const EpisodeStats& stats, SlotRanges slots,
                            const FlashOptions& options) {
  return FlashSearch(stats, slots, options).run();
}

}  // namespace trimtab
