// SPDX-License-Identifier: Apache-2.0
#include "split/split_loads.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/cat.h"
#include "split/peak_flow.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/table.h"
#include "trimtab/workspace.h"

namespace trimtab {
namespace {

// Shares out the tokens of one step after the other.
class Splitter {
 public:
  enum class Unit { kTokens, kSeconds };

  Splitter(const Placement& placement, int layer, const Serving& serving, Unit unit)
      : rule_(serving.sharing.value_or(SplitRule::kRoundRobin)),
        cost_(serving.cost),
        in_time_(unit == Unit::kSeconds),
        table_(placement, layer, serving.node_of_rank),
        workspace_(split_workspace_bytes(table_)),
        counts_(cells(table_.num_ranks, table_.num_experts)),
        shares_(cells(table_.num_ranks, table_.num_slots)),
        loads_(cells(table_.num_ranks)) {}

  // loads: [ranks] of this step.
  void split(std::span<const int64_t> expert_load, std::span<double> loads) {
    const int shift = spread_over_senders(expert_load);
    split_tokens(rule_, table_, counts_, workspace_, shares_, cost_);
    if (in_time_) {
      split_rank_times(table_, shares_, *cost_, loads_);
    } else {
      split_rank_loads(table_, shares_, loads_);
    }
    const double unit = in_time_ ? 1e-12 : 1;
    std::ranges::transform(loads_, loads.begin(), [&](int64_t load) {
      return std::ldexp(static_cast<double>(load), shift) * unit;
    });
  }

 private:
  // Rules count the tokens from one rank for one expert in 32 bits. Returns by which power of two
  // the loads are divided so that they fit.
  int spread_over_senders(std::span<const int64_t> expert_load) {
    const int ranks = table_.num_ranks;
    const Table<int32_t> counts(counts_.data(), ranks, table_.num_experts);
    const int64_t largest = std::ranges::max(expert_load);
    int shift = 0;
    while ((largest >> shift) / ranks >= std::numeric_limits<int32_t>::max()) ++shift;
    int64_t turn = 0;
    for (int64_t expert = 0; expert < std::ssize(expert_load); ++expert) {
      const int64_t tokens = expert_load[cells(expert)] >> shift;
      const int64_t rest = tokens % ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const bool odd = (rank - turn + ranks) % ranks < rest;
        counts(rank, expert) = static_cast<int32_t>(tokens / ranks + (odd ? 1 : 0));
      }
      turn = (turn + rest) % ranks;
    }
    return shift;
  }

  SplitRule rule_;
  const CostModel* cost_;
  bool in_time_;  // loads are in picoseconds, else in tokens
  SplitTable table_;
  Workspace workspace_;
  std::vector<int32_t> counts_;  // [ranks, experts]
  std::vector<int32_t> shares_;  // [ranks, slots]
  std::vector<int64_t> loads_;   // [ranks]
};

// Does one layer of the placement fit the load?
void check_layer(const Placement& placement, const Load& load, int layer) {
  if (placement.num_experts() == load.num_experts && 0 <= layer && layer < load.num_layers &&
      load.counts.size() == cells(load.num_steps, load.num_layers, load.num_experts))
    return;
  throw InvalidArgument(cat("load: layer ", layer, " of ", load.counts.size(), " counts for [",
                            load.num_steps, ", ", load.num_layers, ", ", load.num_experts,
                            "], the placement has ", placement.num_experts(), " experts"));
}

RankLoads split_steps(Splitter splitter, int num_ranks, const Load& load, int layer) {
  RankLoads loads(load.num_steps, 1, num_ranks);
  for (int64_t step = 0; step < load.num_steps; ++step)
    splitter.split(load.at(step, layer), loads.at(step, 0));
  loads.sum_up_window();
  return loads;
}

// Finds the peak rank load of one step after the other.
class PeakFinder {
 public:
  PeakFinder(const Placement& placement, int layer)
      : table_(placement, layer),
        workspace_(peak_flow_bytes(SplitSizes(table_))),
        shared_(table_.shared_expert.size()),
        fixed_(cells(table_.num_ranks)),
        node_(table_.hub_expert.size()),
        own_(table_.arc_slot.size()),
        flow_(table_.arc_slot.size()) {}

  double par(std::span<const int64_t> expert_load) {
    // Sums of this many tokens leave the flow enough of 64 bits. Beyond, 2, 4, ... tokens are one.
    constexpr double kMost = 0x1p60;
    const double total = std::accumulate(expert_load.begin(), expert_load.end(), 0.0);
    int shift = 0;
    while (std::ldexp(total, -shift) > kMost) ++shift;
    int64_t tokens = 0;
    std::ranges::fill(fixed_, 0);
    for (const SplitTable::Sole& sole : table_.soles) {
      const int64_t load = expert_load[cells(sole.expert)] >> shift;
      fixed_[cells(table_.rank_of_slot[cells(sole.slot)])] += load;
      tokens += load;
    }
    for (size_t s = 0; s < shared_.size(); ++s) {
      shared_[s] = expert_load[cells(table_.shared_expert[s])] >> shift;
      tokens += shared_[s];
    }
    if (tokens == 0) return 1;
    const int64_t peak =
        least_peak(table_, {.shared = shared_, .fixed = fixed_, .node = node_, .own = own_},
                   workspace_, flow_);
    return static_cast<double>(peak) * table_.num_ranks / static_cast<double>(tokens);
  }

 private:
  SplitTable table_;
  Workspace workspace_;
  std::vector<int64_t> shared_;  // [shared experts]
  std::vector<int64_t> fixed_;   // [ranks]
  std::vector<int64_t> node_;    // [hubs] zeros: senders are not known
  std::vector<int64_t> own_;     // [arcs] zeros too
  std::vector<int64_t> flow_;    // [arcs]
};

}  // namespace

Sharing parse_sharing(std::string_view name) {
  if (name == "equal") return std::nullopt;
  return parse_split_rule(name);
}

RankLoads rank_loads(const Placement& placement, const Load& load, int layer,
                     const Serving& serving) {
  check_fits(placement, load);
  return rank_loads(placement, layer, load, layer, serving);
}

RankLoads rank_loads(const Placement& placement, int placement_layer, const Load& load,
                     int load_layer, const Serving& serving) {
  check_layer(placement, load, load_layer);
  if (!serving.sharing)
    return rank_loads(placement.logical(placement_layer), placement.first_slots(), load,
                      load_layer);
  return split_steps(Splitter(placement, placement_layer, serving, Splitter::Unit::kTokens),
                     placement.num_ranks(), load, load_layer);
}

RankLoads rank_times(const Placement& placement, const Load& load, int layer,
                     const Serving& serving) {
  check_fits(placement, load);
  return rank_times(placement, layer, load, layer, serving);
}

RankLoads rank_times(const Placement& placement, int placement_layer, const Load& load,
                     int load_layer, const Serving& serving) {
  check_layer(placement, load, load_layer);
  if (serving.cost == nullptr) throw InvalidArgument("rank times need a cost model");
  return split_steps(Splitter(placement, placement_layer, serving, Splitter::Unit::kSeconds),
                     placement.num_ranks(), load, load_layer);
}

std::vector<double> mean_times(const Load& load, int layer, const CostModel& cost, int num_ranks) {
  double speed = cost.has_speeds() ? 0 : num_ranks;
  for (const int32_t one : cost.speeds()) speed += double{1} * one / CostModel::kNominalSpeed;
  std::vector<double> times;
  for (int64_t step = 0; step < load.num_steps; ++step) {
    double work = 0;
    for (const int64_t rows : load.at(step, layer)) work += static_cast<double>(cost.time(rows));
    times.push_back(1e-12 * work / speed);
  }
  return times;
}

std::vector<double> served_pars(const Placement& placement, int placement_layer, const Load& load,
                                int load_layer, const Serving& serving) {
  if (serving.cost == nullptr) {
    if (serving.sharing == SplitRule::kSplit)
      return split_pars(placement, placement_layer, load, load_layer);
    return step_pars(rank_loads(placement, placement_layer, load, load_layer, serving), 0);
  }
  const RankLoads times = rank_times(placement, placement_layer, load, load_layer, serving);
  std::vector<double> pars = mean_times(load, load_layer, *serving.cost, placement.num_ranks());
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const double mean = pars[cells(step)];
    pars[cells(step)] = mean > 0 ? std::ranges::max(times.at(step, 0)) / mean : 1;
  }
  return pars;
}

std::vector<double> split_pars(const Placement& placement, const Load& load, int layer) {
  check_fits(placement, load);
  return split_pars(placement, layer, load, layer);
}

std::vector<double> split_pars(const Placement& placement, int placement_layer, const Load& load,
                               int load_layer) {
  check_layer(placement, load, load_layer);
  PeakFinder finder(placement, placement_layer);
  std::vector<double> pars;
  for (int64_t step = 0; step < load.num_steps; ++step)
    pars.push_back(finder.par(load.at(step, load_layer)));
  return pars;
}

}  // namespace trimtab
