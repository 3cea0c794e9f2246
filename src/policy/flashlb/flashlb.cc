// SPDX-License-Identifier: Apache-2.0
#include "policy/flashlb/flashlb.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "policy/flashlb/flash_pack.h"

namespace trimtab {
namespace {

// A decided prefix of the groups.
struct Partial {
  std::vector<int32_t> copies;  // [experts], 1 for experts of groups to come
  int extra = 0;                // copies that those may still get
  double score = 0;             // of the best map that was looked ahead to
};

class FlashSearch {
 public:
  FlashSearch(const EpisodeStats& stats, std::span<const int32_t> first_slots,
              const FlashOptions& options)
      : options_(options), pack_(stats, first_slots, options.z), order_(stats.num_experts) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return pack_.risk(a) > pack_.risk(b); });
    int ranks = 0;
    for (size_t r = 0; r + 1 < first_slots.size(); ++r)
      ranks += first_slots[r + 1] > first_slots[r] ? 1 : 0;
    max_copies_ = std::max(ranks, (pack_.num_slots() + stats.num_experts - 1) / stats.num_experts);
  }

  FlashMap run() {
    const size_t experts = order_.size();
    const auto depth = static_cast<size_t>(std::max(1, options_.depth));
    const size_t group = (experts + depth - 1) / depth;
    std::vector<Partial> beam = {
        {std::vector<int32_t>(experts, 1), pack_.num_slots() - static_cast<int>(experts), 0}};
    look_ahead(greedy(beam.front(), 0, experts));
    for (size_t begin = 0; begin + group < experts && best_.score > 1; begin += group) {
      std::vector<Partial> next;
      for (const Partial& partial : beam) expand(partial, begin, begin + group, next);
      if (next.empty()) break;
      std::stable_sort(next.begin(), next.end(),
                       [](const Partial& a, const Partial& b) { return a.score < b.score; });
      if (next.size() > static_cast<size_t>(options_.beam)) next.resize(options_.beam);
      beam = std::move(next);
    }
    return std::move(best_);
  }

 private:
  // Which experts of order_[begin, end) get the next copies, one after the other, when each goes to
  // the riskiest share.
  std::vector<int32_t> greedy(const Partial& partial, size_t begin, size_t end) const {
    using Share = std::pair<double, int32_t>;
    const auto less = [](const Share& a, const Share& b) {
      return a.first < b.first || (a.first == b.first && a.second > b.second);
    };
    std::priority_queue<Share, std::vector<Share>, decltype(less)> queue(less);
    std::vector<int32_t> copies = partial.copies;
    for (size_t i = begin; i < end; ++i) {
      if (copies[order_[i]] < max_copies_) queue.push({pack_.risk(order_[i]), order_[i]});
    }
    std::vector<int32_t> receivers;
    while (static_cast<int>(receivers.size()) < partial.extra && !queue.empty()) {
      const int32_t e = queue.top().second;
      queue.pop();
      receivers.push_back(e);
      const int32_t now = ++copies[e];
      if (now < max_copies_) queue.push({pack_.risk(e) / now, e});
    }
    return receivers;
  }

  // Scores the map of the greedy plan for all experts.
  void look_ahead(const std::vector<int32_t>& receivers) {
    std::vector<int32_t> copies(order_.size(), 1);
    for (const int32_t e : receivers) ++copies[e];
    best_.map = pack_.pack(copies);
    best_.score = pack_.score(best_.map);
  }

  // Tries numbers of extra copies for the group order_[begin, end), from the greedy number
  // downwards and upwards.
  void expand(const Partial& partial, size_t begin, size_t end, std::vector<Partial>& next) {
    const std::vector<int32_t> all = greedy(partial, begin, order_.size());
    const std::vector<int32_t> in_group = greedy(partial, begin, end);
    const std::vector<int32_t> behind = greedy(partial, end, order_.size());
    const std::vector<int32_t> group(order_.begin() + static_cast<int64_t>(begin),
                                     order_.begin() + static_cast<int64_t>(end));
    const auto likely = static_cast<int>(std::count_if(all.begin(), all.end(), [&](int32_t e) {
      return std::find(group.begin(), group.end(), e) != group.end();
    }));
    const auto try_here = [&](int here) {
      const int rest = partial.extra - here;
      if (here < 0 || here > static_cast<int>(in_group.size())) return false;
      if (rest < 0 || rest > static_cast<int>(behind.size())) return false;
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
    Partial tried{partial.copies, partial.extra - static_cast<int>(here.size()), 0};
    for (const int32_t e : here) ++tried.copies[e];
    std::vector<int32_t> copies = tried.copies;
    for (const int32_t e : later) ++copies[e];
    if (pack_.score_bound(copies) >= best_.score) return;
    const std::vector<int32_t> map = pack_.pack(copies);
    tried.score = pack_.score(map);
    if (tried.score < best_.score) best_ = {map, tried.score};
    next.push_back(std::move(tried));
  }

  const FlashOptions options_;
  FlashPack pack_;
  std::vector<int32_t> order_;  // experts, riskiest first
  int max_copies_ = 1;          // no use of two copies on one rank
  FlashMap best_;
};

}  // namespace

FlashMap flash_search(const EpisodeStats& stats, std::span<const int32_t> first_slots,
                      const FlashOptions& options) {
  return FlashSearch(stats, first_slots, options).run();
}

}  // namespace trimtab
