// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/layer_planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "policy/align.h"
#include "policy/trim/anneal.h"
#include "policy/trim/branch_and_bound.h"
#include "policy/trim/change_replicas.h"
#include "policy/trim/episodes.h"
#include "policy/trim/grow.h"
#include "policy/trim/level.h"
#include "policy/trim/replica_search.h"
#include "policy/trim/replicas.h"
#include "trimtab/policy.h"

namespace trimtab {
namespace {

using Slots = std::vector<int32_t>;  // a placement of the searched slots

constexpr uint64_t kSeed = 0x7472696d;
// In layers of this size, branch and bound often ends in milliseconds.
constexpr int kSmallExperts = 16;
constexpr int kSmallSlots = 32;
constexpr int kShakes = 500;

using Clock = std::chrono::steady_clock;

class LayerPlanner {
 public:
  LayerPlanner(const LayerTask& task, std::span<const int32_t> current, const Effort& effort,
               const LayerLimits& limits, const Noise& noise)
      : task_(task),
        current_(current.begin(), current.end()),
        effort_(effort),
        limits_(limits),
        noise_(noise),
        demand_(expert_demand(*task.episodes, effort.volatility)) {}

  Slots plan() {
    if (!current_.empty()) consider(current_);
    if (single()) plan_single();
    if (!single() || task_.move_price > 0) search_from_starts();
    if (!single()) search_other_replicas();
    if (!beyond_.empty() && !current_.empty()) search_within_limits();
    if (single() && small() && task_.move_price <= 0 && beyond_.empty()) finish_with_proof();
    return best_.empty() || (best_ == current_ && !beyond_.empty()) ? beyond_ : best_;
  }

 private:
  bool single() const { return task_.episodes->count == 1; }
  bool small() const {
    return task_.num_experts <= kSmallExperts && task_.num_slots() <= kSmallSlots;
  }

  bool within_limits(std::span<const int32_t> placement) const {
    int64_t moves = 0;
    for (int r = 0; r < task_.num_ranks(); ++r) {
      const int received = task_.received(r, placement);
      if (received > limits_.max_receive) return false;
      moves += received;
    }
    return moves <= limits_.max_moves;
  }

  // Keeps the best placement within the limits, and the best beyond them.
  void consider(Slots placement) {
    const double cost = placement_cost(task_, placement);
    const bool within = within_limits(placement);
    Slots& best = within ? best_ : beyond_;
    double& best_cost = within ? best_cost_ : beyond_cost_;
    if (!best.empty() && cost >= best_cost) return;
    best = std::move(placement);
    best_cost = cost;
  }

  Slots aligned(Slots placement) const {
    const bool limited =
        limits_.max_moves < task_.num_slots() || limits_.max_receive < task_.num_slots();
    if (current_.empty() || (task_.move_price <= 0 && !limited))
      return placement;  // free moves need no alignment here
    return align_ranks(current_, placement, task_.slots, task_.num_experts, {});
  }

  // A placement that does not start from the current one.
  Slots fresh() const {
    return aligned(first_placement(task_, choose_replicas(task_, demand_), demand_));
  }

  void plan_single() {
    Slots placement = fresh();
    if (level(task_, placement, effort_.target) > effort_.replicas_above) {
      const auto good_enough = [this](const auto& replicas) {
        check_stop(effort_.stop);
        return place(replicas) <= effort_.target;
      };
      place(search_replicas(task_,
                            {.all_families = effort_.all_families,
                             .iterations = effort_.replica_iterations,
                             .target = effort_.target,
                             .good_enough = good_enough},
                            kSeed));
    }
    consider(std::move(placement));
  }

  // Considers placements with these replicas, levelled. Returns the lowest peak.
  double place(const std::vector<int32_t>& replicas) {
    double lowest = std::numeric_limits<double>::infinity();
    for (Slots placement :
         {first_placement(task_, replicas, demand_), paired_placement(task_, replicas, demand_)}) {
      if (placement.empty()) continue;
      placement = aligned(std::move(placement));
      lowest = std::min(lowest, level(task_, placement, effort_.target));
      consider(std::move(placement));
    }
    return lowest;
  }

  // Most small layers are solved at once. Where the start is too far from the best, a better one is
  // sought first.
  void finish_with_proof() {
    BranchAndBoundResult result =
        branch_and_bound(task_, best_, effort_.proof_nodes / 8, effort_.stop);
    if (!result.peak_proved) {
      best_ = std::move(result.placement);
      best_cost_ = placement_cost(task_, best_);
      shake_replicas(kShakes);
      result = branch_and_bound(task_, best_, effort_.proof_nodes, effort_.stop);
    }
    best_ = std::move(result.placement);
  }

  // Exchanges single replicas at random and levels each outcome. This costs more than
  // search_replicas(), which leaves out duplicates and most placements.
  void shake_replicas(int rounds) {
    Random random(kSeed);
    std::vector<int32_t> replicas = task_.replicas(best_);
    for (int32_t& count : replicas) count -= task_.full_total;
    for (int i = 0; i < rounds; ++i) {
      std::vector<int32_t> changed = replicas;
      for (uint32_t exchanges = 1 + random.below(3); exchanges > 0; --exchanges) {
        const uint32_t gainer = random.below(task_.num_experts);
        const uint32_t loser = random.below(task_.num_experts);
        if (changed[gainer] >= task_.num_ranks() || changed[loser] <= task_.min_replicas())
          continue;
        ++changed[gainer];
        --changed[loser];
      }
      Slots placement = first_placement(task_, changed, demand_);
      level(task_, placement, effort_.target);
      const double before = best_cost_;
      consider(std::move(placement));
      if (best_cost_ < before) replicas = changed;
    }
  }

  void search_from_starts() {
    search_from(fresh());
    if (current_.empty() || task_.move_price <= 0) return;
    search_by_moves();
    // Where moves are cheap and the current placement is bad, a fresh start wins and the others are
    // not worth their time.
    constexpr float kCheap = 2.5e-4F;
    constexpr double kBad = 0.1;
    if (task_.move_price < kCheap && placement_cost(task_, current_) > best_cost_ + kBad) return;
    search_from(current_);
    for (const float reluctance : {0.0F, 0.3F, 1.0F}) {
      search_from(change_replicas(task_, current_, demand_, reluctance, task_.num_slots()));
    }
  }

  // In a layer that is small enough single moves are searched too, and the heat bath goes on from
  // the best that they find: it alone keeps the numbers of replicas of its starts.
  void search_by_moves() {
    if (effort_.seconds > 0 || work_to_grow(task_) > effort_.small_grow_work) return;
    grow(task_, current_, limits_, effort_.small_grow_work,
         [this](const Slots& found) { consider(found); });
    const Slots found = best_.empty() ? beyond_ : best_;
    search_from(found);
  }

  // Replicas that are chosen expert by expert, each for the largest demand, can leave ranks uneven
  // however they are placed: where each of two hot experts should have two replicas on four ranks
  // of three slots, they get three each, and some rank holds two of them. That shows in the loads
  // of all episodes together, which no exchange of slots levels then. Other numbers of replicas are
  // sought for these loads, and what they give is judged on the episodes like everything else.
  void search_other_replicas() {
    const Episodes mean = mean_episode(*task_.episodes);
    LayerTask task = task_;
    task.episodes = &mean;
    task.move_price = 0;
    const Slots& found =
        best_.empty() || (!beyond_.empty() && beyond_cost_ < best_cost_) ? beyond_ : best_;
    if (late() || placement_cost(task, found) <= effort_.mean_above) return;
    Slots exchanged = found;
    if (level(task, exchanged, effort_.mean_above) <= effort_.mean_above) return;
    const std::vector<float> demand = expert_demand(mean, 0);
    const auto levelled = [&](const std::vector<int32_t>& replicas) {
      Slots placement = first_placement(task, replicas, demand);
      const double peak = level(task, placement, effort_.target);
      return std::pair(std::move(placement), peak);
    };
    // This search has no clock: with a time budget it is a short one.
    constexpr int kShort = 100;
    const bool hurries = effort_.seconds > 0;
    const std::vector<int32_t> replicas =
        search_replicas(task,
                        {.all_families = effort_.all_families && !hurries,
                         .iterations = hurries ? kShort : effort_.replica_iterations,
                         .target = effort_.target,
                         .good_enough =
                             [&](const auto& tried) {
                               check_stop(effort_.stop);
                               return levelled(tried).second <= effort_.target;
                             }},
                        kSeed);
    search_from(aligned(levelled(replicas).first));
  }

  // With a time budget, every further search takes twice the sweeps, for this start's part of it.
  void search_from(const Slots& start) {
    if (effort_.seconds <= 0) return consider(anneal(task_, start, effort_.sweeps));
    constexpr double kStarts = 5;
    const Clock::time_point begin = Clock::now();
    const double allowed =
        effort_.seconds / (current_.empty() || task_.move_price <= 0 ? 1 : kStarts);
    const auto elapsed = [&] {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    for (int sweeps = 2; sweeps <= kMostSweeps; sweeps *= 2) {
      const double before = elapsed();
      consider(anneal(task_, start, sweeps));
      const double took = elapsed() - before;
      if (elapsed() + 2 * took > allowed) return;  // the next would take about twice as long
    }
  }

  bool late() const {
    return effort_.seconds > 0 &&
           std::chrono::duration<double>(Clock::now() - begin_).count() > effort_.seconds;
  }

  // Searches by single moves, and looks, from several starts, for the price at which the heat bath
  // just stays within the limits.
  void search_within_limits() {
    // This search has no clock, so that a time budget leaves it out.
    if (effort_.seconds <= 0) {
      grow(task_, current_, limits_, effort_.grow_work,
           [this](const Slots& found) { consider(found); });
    }
    std::vector<Slots> starts = {current_};
    for (int half = 1; half <= 2; ++half) {
      const int64_t changes = std::min<int64_t>(limits_.max_moves, task_.num_slots()) * half / 2;
      starts.push_back(change_replicas(task_, current_, demand_, 0, changes));
    }
    if (limits_.max_moves > task_.num_slots() / 5) starts.push_back(fresh());
    const Slots* best_start = nullptr;
    double best_price = 0;
    for (const Slots& start : starts) {
      const double before = best_cost_;
      const double price = find_price(start);
      if (best_cost_ < before) {
        best_start = &start;
        best_price = price;
      }
    }
    if (best_start == nullptr) return;
    // All effort where the limit lies.
    LayerTask task = task_;
    for (const double factor : {0.7, 0.85, 1.0}) {
      task.move_price = static_cast<float>(factor * best_price);
      consider(anneal(task, *best_start, effort_.sweeps));
    }
  }

  // The lowest price found to stay within the limits; where none does, the highest tried.
  double find_price(const Slots& start) {
    constexpr int kPrices = 5;
    constexpr double kLowest = 2.5e-4;
    LayerTask task = task_;
    double low = std::max(double{task_.move_price}, kLowest);
    double high = 0;  // a price that stayed within; 0: none yet
    for (int i = 0; i < kPrices; ++i) {
      const double price = high > 0 ? std::sqrt(low * high) : 4 * low;
      task.move_price = static_cast<float>(price);
      Slots placement = anneal(task, start, std::max(1, effort_.sweeps / 4));
      (within_limits(placement) ? high : low) = price;
      consider(std::move(placement));
    }
    return high > 0 ? high : low;
  }

  Slots anneal(const LayerTask& task, const Slots& start, int sweeps) const {
    return trimtab::anneal(task, noise_, start, effort_, sweeps, [this] {
      check_stop(effort_.stop);
      return late();
    });
  }

  const LayerTask& task_;
  const Clock::time_point begin_ = Clock::now();
  const Slots current_;
  const Effort effort_;
  const LayerLimits limits_;
  const Noise& noise_;
  const std::vector<float> demand_;
  Slots best_, beyond_;
  double best_cost_ = 0, beyond_cost_ = 0;
};

}  // namespace

std::vector<int32_t> plan_layer(const LayerTask& task, std::span<const int32_t> current,
                                const Effort& effort, const LayerLimits& limits,
                                const Noise& noise) {
  constexpr double kNear = 0.05;
  const bool twice = !current.empty() && effort.near_price > double{task.move_price};
  Effort each = effort;
  if (twice) each.seconds /= 2;
  Slots placement = LayerPlanner(task, current, each, limits, noise).plan();
  if (!twice || placement_cost(task, current) - placement_cost(task, placement) > kNear) {
    return placement;
  }
  LayerTask priced = task;
  priced.move_price = static_cast<float>(effort.near_price);
  return LayerPlanner(priced, current, each, limits, noise).plan();
}

}  // namespace trimtab
