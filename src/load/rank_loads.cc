// SPDX-License-Identifier: Apache-2.0
#include "trimtab/rank_loads.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/cat.h"
#include "load/replicas.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Adds the loads of experts, already divided by their replicas, to the ranks: [ranks].
void add_up(std::span<const int32_t> logical, SlotRanges slots, std::span<const double> per_replica,
            std::span<double> loads) {
  for (int r = 0; r < slots.num_ranks(); ++r) {
    double sum = 0;
    for (const int32_t expert : slots.of(r, logical)) sum += per_replica[cells(expert)];
    loads[cells(r)] = sum;
  }
}

// One layer of equally shared loads, written to layer `to` of `loads`. window: [experts], the
// layer's loads of all steps together.
void share_equally(std::span<const int32_t> logical, SlotRanges slots, const Load& load, int layer,
                   std::span<const int64_t> window, RankLoads& loads, int to) {
  const std::vector<int32_t> replicas = replica_counts(logical, load.num_experts);
  std::vector<double> inverse, per_replica(replicas.size());
  for (const int32_t count : replicas) inverse.push_back(1.0 / count);
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const std::span<const int64_t> counts = load.at(step, layer);
    std::transform(counts.begin(), counts.end(), inverse.begin(), per_replica.begin(),
                   [](int64_t count, double part) { return static_cast<double>(count) * part; });
    add_up(logical, slots, per_replica, loads.at(step, to));
  }
  std::ranges::copy(rank_loads(logical, slots, window), loads.window(to).begin());
}

std::vector<int64_t> sum_of_all_steps(const Load& load, int layer) {
  return sum_of_steps(load, layer, {0, load.num_steps});
}

}  // namespace

void RankLoads::sum_up_window() {
  std::ranges::fill(window_, 0);
  for (int64_t step = 0; step < num_steps_; ++step) {
    for (int layer = 0; layer < num_layers_; ++layer) {
      const std::span<double> sum = window(layer);
      std::ranges::transform(sum, at(step, layer), sum.begin(), std::plus());
    }
  }
}

void check_fits(const Placement& placement, const Load& load) {
  if (load.num_layers == placement.num_layers() && load.num_experts == placement.num_experts() &&
      load.counts.size() == cells(load.num_steps, load.num_layers, load.num_experts))
    return;
  throw InvalidArgument(cat("load: ", load.counts.size(), " counts for [", load.num_steps, ", ",
                            load.num_layers, ", ", load.num_experts, "], the placement has ",
                            placement.num_layers(), " layers of ", placement.num_experts(),
                            " experts"));
}

std::vector<double> rank_loads(std::span<const int32_t> logical, SlotRanges slots,
                               std::span<const int64_t> expert_load) {
  const std::vector<int32_t> replicas =
      replica_counts(logical, static_cast<int>(expert_load.size()));
  std::vector<double> per_replica(expert_load.size()), loads(cells(slots.num_ranks()));
  std::ranges::transform(expert_load, replicas, per_replica.begin(),
                         [](int64_t load, int32_t n) { return static_cast<double>(load) / n; });
  add_up(logical, slots, per_replica, loads);
  return loads;
}

RankLoads rank_loads(std::span<const int32_t> logical, SlotRanges slots, const Load& load,
                     int layer) {
  return rank_loads(logical, slots, load, layer, sum_of_all_steps(load, layer));
}

RankLoads rank_loads(std::span<const int32_t> logical, SlotRanges slots, const Load& load,
                     int layer, std::span<const int64_t> window) {
  if (std::ssize(window) != load.num_experts) {
    throw InvalidArgument(cat("rank loads: a window of ", window.size(), " experts, the load has ",
                              load.num_experts));
  }
  RankLoads loads(load.num_steps, 1, slots.num_ranks());
  share_equally(logical, slots, load, layer, window, loads, 0);
  return loads;
}

RankLoads rank_loads(const Placement& placement, const Load& load, int layer) {
  check_fits(placement, load);
  return rank_loads(placement.logical(layer), placement.first_slots(), load, layer);
}

RankLoads rank_loads(const Placement& placement, const Load& load) {
  check_fits(placement, load);
  RankLoads loads(load.num_steps, load.num_layers, placement.num_ranks());
  for (int layer = 0; layer < load.num_layers; ++layer) {
    share_equally(placement.logical(layer), placement.first_slots(), load, layer,
                  sum_of_all_steps(load, layer), loads, layer);
  }
  return loads;
}

RankLoads recorded_rank_loads(int64_t num_steps, int num_layers,
                              std::span<const std::span<const int32_t>> counts_of_rank) {
  RankLoads loads(num_steps, num_layers, static_cast<int>(counts_of_rank.size()));
  const int64_t rows = num_steps * num_layers;
  for (int rank = 0; rank < loads.num_ranks(); ++rank) {
    const std::span<const int32_t> counts = counts_of_rank[cells(rank)];
    const int64_t slots = rows > 0 ? std::ssize(counts) / rows : 0;
    if (rows > 0 && std::ssize(counts) % rows != 0) {
      throw InvalidArgument(cat("rank ", rank, " recorded ", counts.size(), " counts, not [",
                                num_steps, ", ", num_layers, ", slots]"));
    }
    const Table<const int32_t> table(counts.data(), rows, slots);
    for (int64_t step = 0; step < num_steps; ++step) {
      for (int layer = 0; layer < num_layers; ++layer) {
        const std::span<const int32_t> of_slots = table[step * num_layers + layer];
        loads.at(step, layer)[cells(rank)] = std::accumulate(of_slots.begin(), of_slots.end(), 0.0);
      }
    }
  }
  loads.sum_up_window();
  return loads;
}

}  // namespace trimtab
