// SPDX-License-Identifier: Apache-2.0
#include "policy/static_map.h"

#include <algorithm>

#include "base/random.h"
#include "policy/frame.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

std::vector<size_t> ranks_of_slots(std::span<const int32_t> first_slots) {
  std::vector<size_t> ranks;
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    ranks.insert(ranks.end(), first_slots[r + 1] - first_slots[r], r);
  }
  return ranks;
}

// A map being shuffled, and how often each rank holds each expert.
class Shuffle {
 public:
  Shuffle(int num_experts, std::span<const int32_t> first_slots, uint64_t seed)
      : experts_(num_experts),
        rank_(ranks_of_slots(first_slots)),
        map_(round_robin_map(num_experts, first_slots)),
        held_((first_slots.size() - 1) * experts_, 0),
        copies_(experts_, 0),
        random_(seed) {
    for (size_t s = 0; s < map_.size(); ++s) add(s, 1);
  }

  std::vector<int32_t> run() {
    for (size_t i = 0; i < 8 * map_.size(); ++i) {
      replace(random_.below(static_cast<uint32_t>(map_.size())),
              random_.below(static_cast<uint32_t>(experts_)));
      exchange(random_.below(static_cast<uint32_t>(map_.size())),
               random_.below(static_cast<uint32_t>(map_.size())));
    }
    return map_;
  }

 private:
  size_t expert(size_t slot) const { return static_cast<size_t>(map_[slot]); }
  bool holds(size_t rank, size_t e) const { return held_[rank * experts_ + e] > 0; }
  void add(size_t slot, int by) {
    held_[rank_[slot] * experts_ + expert(slot)] += by;
    copies_[expert(slot)] += by;
  }
  void set(size_t slot, size_t e) {
    add(slot, -1);
    map_[slot] = static_cast<int32_t>(e);
    add(slot, 1);
  }

  void replace(size_t slot, size_t e) {
    if (copies_[expert(slot)] > 1 && !holds(rank_[slot], e)) set(slot, e);
  }

  void exchange(size_t a, size_t b) {
    if (holds(rank_[a], expert(b)) || holds(rank_[b], expert(a))) return;
    const size_t moved = expert(a);
    set(a, expert(b));
    set(b, moved);
  }

  const size_t experts_;
  const std::vector<size_t> rank_;  // [slots]
  std::vector<int32_t> map_;        // [slots]
  std::vector<int> held_;           // [ranks, experts]
  std::vector<int> copies_;         // [experts]
  Random random_;
};

class FixedPolicy final : public Policy {
 public:
  using Map = std::vector<int32_t> (*)(int num_experts, std::span<const int32_t> first_slots,
                                       uint64_t seed);
  FixedPolicy(std::string_view name, Map map, uint64_t seed)
      : name_(name), map_(map), seed_(seed) {}

  std::string_view name() const override { return name_; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    std::vector<int32_t> proposal;
    for (int layer = 0; layer < problem.load.num_layers; ++layer) {
      const std::vector<int32_t> map = map_(problem.load.num_experts, problem.current.first_slots(),
                                            seed_ * 0x10001u + static_cast<uint64_t>(layer));
      proposal.insert(proposal.end(), map.begin(), map.end());
    }
    return finish_plan(problem, std::move(proposal),
                       {.align_ranks = false, .align_slots = false, .require_gain = false});
  }

 private:
  std::string_view name_;
  Map map_;
  uint64_t seed_;
};

}  // namespace

std::vector<int32_t> linear_map(int num_experts, std::span<const int32_t> first_slots) {
  std::vector<int32_t> map(first_slots.back());
  for (size_t s = 0; s < map.size(); ++s)
    map[s] = static_cast<int32_t>(s % static_cast<size_t>(num_experts));
  return map;
}

std::vector<int32_t> round_robin_map(int num_experts, std::span<const int32_t> first_slots) {
  const auto experts = static_cast<size_t>(num_experts);
  const size_t ranks = first_slots.size() - 1;
  std::vector<int32_t> map(first_slots.back());
  std::vector<int> copies(experts, 0);
  std::vector<int> held(ranks * experts, 0);
  size_t left = map.size();
  for (int32_t round = 0; left > 0; ++round) {
    for (size_t r = 0; r < ranks; ++r) {
      if (round >= first_slots[r + 1] - first_slots[r]) continue;
      size_t best = 0;
      for (size_t e = 1; e < experts; ++e) {
        const int here = held[r * experts + e] - held[r * experts + best];
        if (here < 0 || (here == 0 && copies[e] < copies[best])) best = e;
      }
      map[first_slots[r] + round] = static_cast<int32_t>(best);
      ++copies[best];
      ++held[r * experts + best];
      --left;
    }
  }
  return map;
}

std::vector<int32_t> random_map(int num_experts, std::span<const int32_t> first_slots,
                                uint64_t seed) {
  return Shuffle(num_experts, first_slots, seed).run();
}

std::unique_ptr<Policy> make_static_policy(const PolicyOptions&) {
  return std::make_unique<FixedPolicy>(
      "static",
      [](int experts, std::span<const int32_t> slots, uint64_t) {
        return linear_map(experts, slots);
      },
      0);
}

std::unique_ptr<Policy> make_round_robin_policy(const PolicyOptions&) {
  return std::make_unique<FixedPolicy>(
      "round_robin",
      [](int experts, std::span<const int32_t> slots, uint64_t) {
        return round_robin_map(experts, slots);
      },
      0);
}

std::unique_ptr<Policy> make_random_policy(const PolicyOptions& options) {
  return std::make_unique<FixedPolicy>("random", random_map, options.seed);
}

}  // namespace trimtab
