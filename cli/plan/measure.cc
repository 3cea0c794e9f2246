// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "load/rank_loads.h"
#include "trimtab/error.h"
#include "trimtab/table.h"
#include "trimtab/workspace.h"

namespace trimtab::cli {

namespace {

// Whole tokens of each step, shared out by a rule.
class SplitShares {
 public:
  SplitShares(const Placement& placement, int layer, SplitRule rule,
              std::span<const int32_t> node_of_rank)
      : rule_(rule),
        table_(placement, layer, node_of_rank),
        workspace_(split_workspace_bytes(table_)),
        counts_(cells(table_.num_ranks, table_.num_experts)),
        shares_(cells(table_.num_ranks, table_.num_slots)),
        loads_(table_.num_ranks) {}

  // The ranks' loads of one step: [ranks].
  std::vector<double> operator()(std::span<const int64_t> counts) {
    spread(counts);
    split_tokens(rule_, table_, counts_, workspace_, shares_);
    split_rank_loads(table_, shares_, loads_);
    return {loads_.begin(), loads_.end()};
  }

 private:
  // Over the ranks that send them: equally, the odd tokens in turn.
  void spread(std::span<const int64_t> counts) {
    const auto ranks = static_cast<int64_t>(loads_.size());
    int64_t turn = 0;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      const int64_t each = counts[expert] / ranks, rest = counts[expert] % ranks;
      if (each >= std::numeric_limits<int32_t>::max()) {
        throw InvalidArgument(std::to_string(counts[expert]) + " tokens of one step for expert " +
                              std::to_string(expert) +
                              ": no batch has so many; record step by step to use --split");
      }
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const bool odd = (rank - turn + ranks) % ranks < rest;
        counts_[static_cast<size_t>(rank) * counts.size() + expert] =
            static_cast<int32_t>(each + (odd ? 1 : 0));
      }
      turn = (turn + rest) % ranks;
    }
  }

  SplitRule rule_;
  SplitTable table_;
  Workspace workspace_;
  std::vector<int32_t> counts_;  // [ranks, experts]
  std::vector<int32_t> shares_;  // [ranks, slots]
  std::vector<int64_t> loads_;
};

LayerLevel level_of(std::span<const double> step_par, std::vector<double> rank_load) {
  LayerLevel level;
  double sum = 0;
  for (size_t step = 0; step < step_par.size(); ++step) {
    sum += step_par[step];
    if (step_par[step] <= level.par_step_worst) continue;
    level.par_step_worst = step_par[step];
    level.worst_step = static_cast<int64_t>(step);
  }
  level.par = peak_to_mean(rank_load);
  level.par_step_mean = sum / static_cast<double>(step_par.size());
  level.rank_load = std::move(rank_load);
  return level;
}

}  // namespace

LayerLevel measure(const Placement& placement, const Load& load, int layer) {
  const std::span<const int32_t> map = placement.logical(layer),
                                 first_slots = placement.first_slots();
  return level_of(step_pars(map, first_slots, load, layer),
                  rank_loads(map, first_slots, sum_of_steps(load, layer, 0, load.num_steps)));
}

LayerLevel measure_split(const Placement& placement, const Load& load, int layer, SplitRule rule,
                         std::span<const int32_t> node_of_rank) {
  SplitShares shares(placement, layer, rule, node_of_rank);
  std::vector<double> step_par, rank_load(placement.num_ranks());
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const std::vector<double> loads = shares(load.at(step, layer));
    for (size_t rank = 0; rank < loads.size(); ++rank) rank_load[rank] += loads[rank];
    step_par.push_back(peak_to_mean(loads));
  }
  return level_of(step_par, std::move(rank_load));
}

Drift drift(const Load& load, int layer, int64_t window) {
  const auto shares = [&](int64_t w) {
    const std::vector<int64_t> counts = sum_of_steps(load, layer, w * window, (w + 1) * window);
    const auto total = static_cast<double>(
        std::max<int64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 1));
    std::vector<double> result;
    for (const int64_t count : counts) result.push_back(static_cast<double>(count) / total);
    return result;
  };
  Drift result;
  const int64_t windows = load.num_steps / window;
  std::vector<double> before = shares(0);
  for (int64_t w = 1; w < windows; ++w) {
    std::vector<double> now = shares(w);
    double change = 0;
    for (size_t e = 0; e < now.size(); ++e) change += std::abs(now[e] - before[e]) / 2;
    result.mean += change / static_cast<double>(windows - 1);
    result.worst = std::max(result.worst, change);
    before = std::move(now);
  }
  return result;
}

}  // namespace trimtab::cli
