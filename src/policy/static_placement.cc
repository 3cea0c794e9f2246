// SPDX-License-Identifier: Apache-2.0
#include "policy/static_placement.h"

#include <algorithm>

#include "base/random.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

// A placement that is being shuffled.
class Shuffle {
 public:
  Shuffle(int num_experts, SlotRanges slots, uint64_t seed)
      : num_experts_(num_experts),
        slots_(slots),
        placement_(round_robin_placement(num_experts, slots)),
        held_(count_held<int>(slots, placement_, num_experts)),
        replicas_(num_experts, 0),
        random_(seed) {
    for (const int32_t e : placement_) ++replicas_[e];
  }

  std::vector<int32_t> run() {
    const int num_slots = slots_.num_slots();
    for (int64_t i = 0; i < int64_t{8} * num_slots; ++i) {
      // Compilers differ in the order in which they evaluate arguments, so each draw has a line.
      const int32_t e = draw(num_experts_);
      const int32_t slot = draw(num_slots);
      replace(slot, e);
      const int32_t b = draw(num_slots);
      const int32_t a = draw(num_slots);
      exchange(a, b);
    }
    return placement_;
  }

 private:
  int32_t draw(int32_t end) { return random_.below(end); }
  bool holds(int slot, int32_t e) const { return held_(slots_.rank_of(slot), e) > 0; }
  void set(int slot, int32_t e) {
    const int rank = slots_.rank_of(slot);
    --held_(rank, placement_[slot]);
    --replicas_[placement_[slot]];
    placement_[slot] = e;
    ++held_(rank, e);
    ++replicas_[e];
  }

  void replace(int slot, int32_t e) {
    if (replicas_[placement_[slot]] > 1 && !holds(slot, e)) set(slot, e);
  }

  void exchange(int a, int b) {
    const int32_t in_a = placement_[a];
    const int32_t in_b = placement_[b];
    if (holds(a, in_b) || holds(b, in_a)) return;
    set(a, in_b);
    set(b, in_a);
  }

  const int num_experts_;
  SlotRanges slots_;
  std::vector<int32_t> placement_;  // [slots]
  Matrix<int> held_;                // [ranks, experts]
  std::vector<int> replicas_;       // [experts]
  Random random_;
};

class FixedPolicy final : public Policy {
 public:
  using Place = std::vector<int32_t> (*)(int num_experts, SlotRanges slots, uint64_t seed);
  FixedPolicy(std::string_view name, Place place, uint64_t seed)
      : name_(name), place_(place), seed_(seed) {}

  std::string_view name() const override { return name_; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    refuse_rules(problem, name());
    const auto plan_layer = [&](int layer) {
      const uint64_t seed = seed_ * 0x10001u + layer;
      return place_(problem.load.num_experts, problem.current.first_slots(), seed);
    };
    return finish_plan(problem, plan_layers(problem, plan_layer),
                       {.align_ranks = false, .align_slots = false, .require_gain = false});
  }

 private:
  std::string_view name_;
  Place place_;
  uint64_t seed_;
};

}  // namespace

std::vector<int32_t> linear_placement(int num_experts, SlotRanges slots) {
  std::vector<int32_t> placement;
  for (int s = 0; s < slots.num_slots(); ++s) placement.push_back(s % num_experts);
  return placement;
}

std::vector<int32_t> round_robin_placement(int num_experts, SlotRanges slots) {
  std::vector<int32_t> placement(slots.num_slots());
  std::vector<int> replicas(num_experts, 0);
  Matrix<int> held(slots.num_ranks(), num_experts, 0);
  for (int round = 0, left = slots.num_slots(); left > 0; ++round) {
    for (int r = 0; r < slots.num_ranks(); ++r) {
      if (round >= slots.count(r)) continue;
      int32_t best = 0;
      for (int32_t e = 1; e < num_experts; ++e) {
        const int here = held(r, e) - held(r, best);
        if (here < 0 || (here == 0 && replicas[e] < replicas[best])) best = e;
      }
      placement[slots.first(r) + round] = best;
      ++replicas[best];
      ++held(r, best);
      --left;
    }
  }
  return placement;
}

std::vector<int32_t> random_placement(int num_experts, SlotRanges slots, uint64_t seed) {
  return Shuffle(num_experts, slots, seed).run();
}

std::unique_ptr<Policy> make_static_policy(const PolicyOptions&) {
  return std::make_unique<FixedPolicy>(
      "static",
      [](int experts, SlotRanges slots, uint64_t) { return linear_placement(experts, slots); }, 0);
}

std::unique_ptr<Policy> make_round_robin_policy(const PolicyOptions&) {
  return std::make_unique<FixedPolicy>(
      "round_robin",
      [](int experts, SlotRanges slots, uint64_t) { return round_robin_placement(experts, slots); },
      0);
}

std::unique_ptr<Policy> make_random_policy(const PolicyOptions& options) {
  return std::make_unique<FixedPolicy>("random", random_placement, options.seed);
}

}  // namespace trimtab
