// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "policy/flashlb/flash_pack.h"
#include "policy/flashlb/flashlb.h"
#include "policy/frame.h"
#include "policy/policies.h"

namespace trimtab {
namespace {

// Its history holds, for each layer, the episodes that the layer was last planned on. The score of
// the current map on them is what that plan promised.
class FlashlbPolicy final : public Policy {
 public:
  std::string_view name() const override { return "flashlb"; }

  Plan rebalance(const Problem& problem) const override {
    validate(problem);
    const Load episodes = to_episodes(problem.load, options_.max_episodes);
    std::vector<int32_t> proposal;
    for (int layer = 0; layer < problem.load.num_layers; ++layer) {
      const std::vector<int32_t> map = plan_layer(problem, episodes, layer);
      proposal.insert(proposal.end(), map.begin(), map.end());
    }
    Plan plan = finish_plan(problem, std::move(proposal));
    plan.history = make_history(problem, episodes, plan.placement);
    return plan;
  }

 private:
  std::vector<int32_t> plan_layer(const Problem& problem, const Load& episodes, int layer) const {
    const std::span<const int32_t> current = problem.current.logical(layer);
    const std::span<const int32_t> first_slots = problem.current.first_slots();
    const EpisodeStats stats = episode_stats(episodes, layer);
    const double now = FlashPack(stats, first_slots, options_.z).score(current);
    const bool small = problem.current.num_ranks() < options_.small_ranks;
    bool needed = true;
    if (problem.history != nullptr && problem.history->episodes.num_steps > 0) {
      const EpisodeStats past_stats = episode_stats(problem.history->episodes, layer);
      const double past = FlashPack(past_stats, first_slots, options_.z).score(current);
      needed = 1 / now < (small ? options_.small_history : options_.history) / past ||
               1 / now < (small ? options_.small_value : options_.value);
    }
    if (needed) {
      FlashMap found = flash_search(stats, first_slots, options_);
      if (1 / found.score > (1 + options_.min_gain) / now) return std::move(found.map);
    }
    return {current.begin(), current.end()};
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
    const auto experts = static_cast<size_t>(out.num_experts);
    const auto layers = static_cast<size_t>(out.num_layers);
    // A layer with fewer episodes than others has empty ones, which no statistics count.
    out.counts.assign(static_cast<size_t>(out.num_steps) * layers * experts, 0);
    for (int layer = 0; layer < out.num_layers; ++layer) {
      const std::span<const int32_t> before = problem.current.logical(layer);
      const bool changed =
          !std::equal(before.begin(), before.end(), placement.logical(layer).begin());
      const Load& from = changed ? episodes : past;
      for (int64_t t = 0; t < from.num_steps; ++t) {
        const std::span<const int64_t> counts = from.at(t, layer);
        std::copy(counts.begin(), counts.end(),
                  out.counts.begin() + static_cast<int64_t>((static_cast<size_t>(t) * layers +
                                                             static_cast<size_t>(layer)) *
                                                            experts));
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
