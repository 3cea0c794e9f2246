// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/node_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "trimtab/policy.h"

namespace trimtab {
namespace {

// Temperatures at the start and the end, in copies per token, or PAR.
constexpr double kHot = 0.01, kCold = 0.0003;
// For level load alone the more slots there are, the less does an exchange change.
constexpr double kHotLevelSlots = 10, kColdLevel = 0.00003;
constexpr int64_t kSameTemperature = 64;  // exchanges
// What a peak above its limit by one mean load costs, in copies per token: at the start, and the
// range. The search does best at the edge of what is level, so the price falls while placements
// within the limits are met, and rises while none is.
constexpr double kLevelPrice = 20, kLeastLevelPrice = 5, kMostLevelPrice = 200;
constexpr double kCheaper = 0.8, kDearer = 1.3;
constexpr int64_t kSameLevelPrice = 1024;  // exchanges

class NodeSearch {
 public:
  NodeSearch(MutableLayer& layer, TokenPlanes* planes, SlotExchanges& exchanges,
             const NodeGoal& goal)
      : layer_(layer),
        planes_(planes),
        exchanges_(exchanges),
        goal_(goal),
        level_price_(planes == nullptr ? 1 : kLevelPrice),
        hot_(planes == nullptr ? kHotLevelSlots / layer.slots().num_slots() : kHot),
        cold_(planes == nullptr ? kColdLevel : kCold) {}

  void run() {
    if (planes_ != nullptr) {
      std::vector<int32_t> all(cells(layer_.num_experts()));
      std::iota(all.begin(), all.end(), 0);
      planes_->change_of(all, layer_.on_node());
      planes_->keep();
    }
    excess_ = excess();
    double least = cost();
    std::vector<int32_t> best = layer_.placement();
    for (int64_t step = 0; step < goal_.steps; ++step) {
      const double progress = static_cast<double>(step) / static_cast<double>(goal_.steps);
      if (step % kSameTemperature == 0) {
        check_stop(goal_.stop);
        temperature_ = hot_ * std::pow(cold_ / hot_, progress);
      }
      if (planes_ != nullptr && step % kSameLevelPrice == kSameLevelPrice - 1) change_level_price();
      if (!choose(progress) || !judge()) continue;
      if (excess_ <= 0) was_level_ = true;
      if (planes_ != nullptr && excess_ > 0) continue;
      const double now = cost();
      if (now < least - 1e-9) {
        least = now;
        best = layer_.placement();
      }
    }
    layer_.go_to(best);
  }

 private:
  // With tokens peaks count for nothing within their limits.
  double cost() const {
    const double wires = planes_ == nullptr
                             ? level_price_ * excess_
                             : static_cast<double>(planes_->cost()) / planes_->copy_of_all();
    return wires + goal_.move_price * layer_.moves();
  }
  double excess_of(double window, double runs) const {
    return std::max(0.0, window - goal_.limits.window) + std::max(0.0, runs - goal_.limits.runs);
  }
  double excess() const { return excess_of(layer_.window_peak(), layer_.runs_peak()); }

  void change_level_price() {
    level_price_ = std::clamp(level_price_ * (was_level_ ? kCheaper : kDearer), kLeastLevelPrice,
                              kMostLevelPrice);
    was_level_ = excess_ <= 0;
  }

  bool choose(double progress) {
    const uint32_t kind = exchanges_.random().below(16);
    if (kind < 2) return exchanges_.replica();
    if (kind < 6) return exchanges_.two_slots_of_node();
    if (kind == 6 && goal_.rules.groups()) return exchanges_.two_groups(goal_.rules.num_groups());
    // Loads that only change places stay level.
    if (kind < 8 && progress < 0.5) return exchanges_.two_ranks();
    return exchanges_.two_slots_alike();
  }

  bool judge() {
    // What the exchange may cost, the chance that it is taken anyway included.
    const double most = -temperature_ * std::log(static_cast<double>(exchanges_.random().unit()));
    if (level_price_ * (least_excess() - excess_) > most + kHopeless + 2 * goal_.move_price)
      return false;
    const int moves = layer_.moves();
    layer_.change(exchanges_.changes());
    const double excess_now = excess();
    const double worse =
        level_price_ * (excess_now - excess_) + goal_.move_price * (layer_.moves() - moves);
    if (!goal_.rules.holds(layer_) || worse > most + kHopeless ||
        worse + change_of_copies() > most) {
      layer_.undo();
      return false;
    }
    if (planes_ != nullptr) planes_->keep();
    excess_ = excess_now;
    return true;
  }

  // A bound from below on the excess after the changes.
  double least_excess() const {
    const std::span<const SlotChange> changes = exchanges_.changes();
    if (changes.size() != 2 || layer_.expert(changes[0].slot) != changes[1].expert ||
        layer_.expert(changes[1].slot) != changes[0].expert)
      return 0;
    const MutableLayer::Peaks peaks = layer_.peaks_at_least(changes[0].slot, changes[1].slot);
    return excess_of(peaks.window, peaks.runs);
  }

  double change_of_copies() {
    if (planes_ == nullptr) return 0;
    return static_cast<double>(planes_->change_of(layer_.touched(), layer_.on_node())) /
           planes_->copy_of_all();
  }

  // No exchange saves so many copies per token.
  static constexpr double kHopeless = 0.1;

  MutableLayer& layer_;
  TokenPlanes* const planes_;
  SlotExchanges& exchanges_;
  const NodeGoal goal_;
  double level_price_;
  const double hot_, cold_;
  double excess_ = 0, temperature_ = 0;
  bool was_level_ = true;  // some placement since the price of peaks changed was within the limits
};

}  // namespace

void search_nodes(MutableLayer& layer, TokenPlanes* planes, SlotExchanges& exchanges,
                  const NodeGoal& goal) {
  if (planes != nullptr && planes->copy_of_all() == 0) return;
  NodeSearch(layer, planes, exchanges, goal).run();
}

}  // namespace trimtab
