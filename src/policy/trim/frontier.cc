// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/frontier.h"

#include <algorithm>
#include <map>
#include <utility>

#include "policy/layer_placement.h"
#include "policy/trim/anneal.h"
#include "policy/trim/change_replicas.h"
#include "policy/trim/grow.h"
#include "policy/trim/replicas.h"

namespace trimtab {
namespace {

using Slots = std::vector<int32_t>;

class Frontier {
 public:
  Frontier(const LayerTask& task, std::span<const int32_t> current, std::span<const int32_t> plan,
           const Effort& effort, const LayerLimits& limits, const Noise& noise)
      : free_(task),
        current_(to_vector(current)),
        plan_(to_vector(plan)),
        effort_(effort),
        limits_(limits),
        noise_(noise) {
    free_.move_price = 0;
  }

  std::vector<Slots> find() {
    add(current_);
    add(plan_);
    grow(free_, current_, limits_, effort_.grow_work, [this](const Slots& found) { add(found); });
    search_at_prices();
    return best();
  }

 private:
  struct Found {
    Slots placement;
    double cost = 0;
  };

  // Keeps a placement if it is the most level one with as many moves.
  void add(const Slots& placement) {
    int64_t moves = 0;
    for (int r = 0; r < free_.num_ranks(); ++r) {
      const int received = free_.received(r, placement);
      if (received > limits_.max_receive) return;
      moves += received;
    }
    if (moves > limits_.max_moves) return;
    const double cost = placement_cost(free_, placement);
    const auto [at, is_new] = found_.try_emplace(moves, Found{placement, cost});
    if (!is_new && cost < at->second.cost) at->second = {placement, cost};
  }

  // From the plan down, each price starts from what the one below has left. From the current
  // placement up, every number of changed replicas is a start for several prices.
  void search_at_prices() {
    const int sweeps = std::max(1, effort_.sweeps / 4);
    LayerTask task = free_;
    Slots falling = plan_;
    constexpr float kLowest = 2.5e-4F, kHighest = 0.13F, kStep = 1.5F;
    for (task.move_price = kLowest; task.move_price < kHighest; task.move_price *= kStep) {
      falling = anneal(task, noise_, falling, effort_, 2 * sweeps);
      add(falling);
      if (free_.moves(falling) == 0) break;
    }
    const std::vector<float> demand = expert_demand(*free_.episodes, effort_.volatility);
    const int64_t most = std::min<int64_t>(limits_.max_moves, free_.num_slots());
    Slots rising = current_;
    for (int64_t changes = 0; changes <= most;) {
      add(rising);
      for (const float price : {0.032F, 0.008F, 0.002F}) {
        task.move_price = price;
        add(anneal(task, noise_, rising, effort_, sweeps));
      }
      const int64_t more = 1 + changes / 3;
      const Slots next = change_replicas(free_, rising, demand, 0, more);
      if (next == rising) break;
      rising = next;
      changes += more;
    }
  }

  std::vector<Slots> best() const {
    std::vector<Slots> placements;
    double least = placement_cost(free_, current_);
    for (const auto& [moves, found] : found_) {
      if (found.cost >= least) continue;
      least = found.cost;
      placements.push_back(found.placement);
    }
    return placements;
  }

  LayerTask free_;  // the task without a price of moves
  const Slots current_;
  const Slots plan_;
  const Effort effort_;
  const LayerLimits limits_;
  const Noise& noise_;
  std::map<int64_t, Found> found_;  // by moves
};

}  // namespace

std::vector<std::vector<int32_t>> layer_frontier(const LayerTask& task,
                                                 std::span<const int32_t> current,
                                                 std::span<const int32_t> plan,
                                                 const Effort& effort, const LayerLimits& limits,
                                                 const Noise& noise) {
  return Frontier(task, current, plan, effort, limits, noise).find();
}

}  // namespace trimtab
