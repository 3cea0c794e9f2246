// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "load/episodes.h"
#include "policy/flashlb/flash_pack.h"
#include "policy/flashlb/flashlb.h"
#include "policy/frame.h"
#include "policy/layer_placement.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

// The history of this policy holds, for each layer, the episodes that the layer was last planned
// on. The score of the current placement on them is what that plan promised.
class FlashlbPolicy final : public Policy {
 public:
  std::string_view name() const override { return "flashlb"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    refuse_rules(problem, name());
    const Load episodes =
        to_episodes(problem.load, EpisodeCut::even(problem.load.num_steps, options_.max_episodes));
    Plan plan = finish_plan(problem, plan_layers(problem, [&](int layer) {
                              return plan_layer(problem, episodes, layer);
                            }));
    plan.history = make_history(problem, episodes, plan.placement);
    return plan;
  }

 private:
  std::vector<int32_t> plan_layer(const Problem& problem, const Load& episodes, int layer) const {
    const std::span<const int32_t> current = problem.current.logical(layer);
    const SlotRanges slots = problem.current.first_slots();
    const EpisodeStats stats = episode_stats(episodes, layer);
    const double now = FlashPack(stats, slots, options_.z).score(current);
    const bool small = problem.current.num_ranks() < options_.small_ranks;
    bool needed = true;
    if (problem.history != nullptr && problem.history->episodes.num_steps > 0) {
      const EpisodeStats past_stats = episode_stats(problem.history->episodes, layer);
      const double past = FlashPack(past_stats, slots, options_.z).score(current);
      needed = 1 / now < (small ? options_.small_history : options_.history) / past ||
               1 / now < (small ? options_.small_value : options_.value);
    }
    if (needed) {
      FlashPlacement found = flash_search(stats, slots, options_);
      if (1 / found.score > (1 + options_.min_gain) / now) return std::move(found.experts);
    }
    return to_vector(current);
  }

  static History make_history(const Problem& problem, const Load& episodes,
                              const Placement& placement) {
    const bool remembers = problem.history != nullptr && problem.history->episodes.num_steps > 0;
    const Load& past = remembers ? problem.history->episodes : episodes;
    History history;
    Load& out = history.episodes;
    out = {.num_steps = std::max(past.num_steps, episodes.num_steps),
           .num_layers = episodes.num_layers,
           .num_experts = episodes.num_experts,
           .counts = {}};
    // A layer with fewer episodes than others has empty ones, which no statistics count.
    out.counts.assign(cells(out.num_steps, out.num_layers, out.num_experts), 0);
    const Table counts(out.counts, out.num_experts);
    for (int layer = 0; layer < out.num_layers; ++layer) {
      const bool changed =
          !std::ranges::equal(problem.current.logical(layer), placement.logical(layer));
      const Load& from = changed ? episodes : past;
      for (int64_t t = 0; t < from.num_steps; ++t) {
        std::ranges::copy(from.at(t, layer), counts[t * out.num_layers + layer].begin());
      }
    }
    history.weights.assign(out.num_steps, 1.0);
    history.steps_seen = (remembers ? problem.history->steps_seen : 0) + problem.load.num_steps;
    return history;
  }

  const FlashOptions options_ = {};
};

}  // namespace

std::unique_ptr<Policy> make_flashlb_policy(const PolicyOptions&) {
  return std::make_unique<FlashlbPolicy>();
}

}  // namespace trimtab
