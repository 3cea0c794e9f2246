// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/node_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "trimtab/policy.h"

namespace trimtab {
namespace {

// Temperatures at the start and the end, in copies per token.
constexpr double kHot = 0.01;
constexpr double kCold = 0.0003;
constexpr int64_t kSameTemperature = 64;  // exchanges
// What a peak above its limit by one mean load costs, in copies per token.
constexpr double kLevelPrice = 20;

class NodeSearch {
 public:
  NodeSearch(MutableLayer& layer, TokenPlanes& planes, SlotExchanges& exchanges,
             const NodeGoal& goal)
      : layer_(layer), planes_(planes), exchanges_(exchanges), goal_(goal) {}

  void run() {
    std::vector<int32_t> all(cells(layer_.num_experts()));
    std::iota(all.begin(), all.end(), 0);
    planes_.change_of(all, layer_.on_node());
    planes_.keep();
    const std::vector<int32_t> start = layer_.placement();
    std::vector<int32_t> best = start;
    double least = wires();
    excess_ = excess();
    for (int64_t step = 0; step < goal_.steps; ++step) {
      const double progress = static_cast<double>(step) / static_cast<double>(goal_.steps);
      if (step % kSameTemperature == 0) {
        check_stop(goal_.stop);
        temperature_ = kHot * std::pow(kCold / kHot, progress);
      }
      if (!choose(progress) || !judge() || excess_ > 0) continue;
      const double now = wires();
      if (now < least - 1e-9) {
        least = now;
        best = layer_.placement();
      }
    }
    layer_.go_to(best);
    planes_.change_of(layer_.touched(), layer_.on_node());
    planes_.keep();
  }

 private:
  double wires() const {
    return static_cast<double>(planes_.cost()) / planes_.copy_of_all() +
           goal_.move_price * layer_.moves();
  }
  double excess() const {
    return std::max(0.0, layer_.window_peak() - goal_.limits.window) +
           std::max(0.0, layer_.runs_peak() - goal_.limits.runs);
  }

  bool choose(double progress) {
    const uint32_t kind = exchanges_.random().below(16);
    if (kind < 2) return exchanges_.replica();
    if (kind < 6) return exchanges_.two_slots_of_node();
    // Loads that only change places stay level.
    if (kind < 8 && progress < 0.5) return exchanges_.two_ranks();
    return exchanges_.two_slots_alike();
  }

  bool judge() {
    const int moves = layer_.moves();
    layer_.change(exchanges_.changes());
    const double excess_now = excess();
    const double worse =
        kLevelPrice * (excess_now - excess_) + goal_.move_price * (layer_.moves() - moves);
    // What the exchange may cost, the chance that it is taken anyway included.
    const double most = -temperature_ * std::log(static_cast<double>(exchanges_.random().unit()));
    if (worse > most + kHopeless) {
      layer_.undo();
      return false;
    }
    const int64_t change = planes_.change_of(layer_.touched(), layer_.on_node());
    if (worse + static_cast<double>(change) / planes_.copy_of_all() > most) {
      layer_.undo();
      return false;
    }
    planes_.keep();
    excess_ = excess_now;
    return true;
  }

  // No exchange saves so many copies per token.
  static constexpr double kHopeless = 0.1;

  MutableLayer& layer_;
  TokenPlanes& planes_;
  SlotExchanges& exchanges_;
  const NodeGoal goal_;
  double excess_ = 0, temperature_ = 0;
};

}  // namespace

void search_nodes(MutableLayer& layer, TokenPlanes& planes, SlotExchanges& exchanges,
                  const NodeGoal& goal) {
  if (planes.copy_of_all() > 0) NodeSearch(layer, planes, exchanges, goal).run();
}

}  // namespace trimtab
