// SPDX-License-Identifier: Apache-2.0
// How many tokens each rank gets, in every step and layer: under a placement that recorded loads
// are applied to, or as the ranks themselves recorded it. trimtab/par.h says how level they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {

// Tokens of ranks: [steps, layers, ranks], and their sums over the steps, the window: [layers,
// ranks]. The tokens of an expert may be shared out in fractions, so they are no whole numbers.
class RankLoads {
 public:
  RankLoads() = default;
  // All loads are 0.
  RankLoads(int64_t num_steps, int num_layers, int num_ranks)
      : num_steps_(num_steps),
        num_layers_(num_layers),
        num_ranks_(num_ranks),
        tokens_(cells(num_steps, num_layers, num_ranks)),
        window_(cells(num_layers, num_ranks)) {}

  int64_t num_steps() const { return num_steps_; }
  int num_layers() const { return num_layers_; }
  int num_ranks() const { return num_ranks_; }
  StepRange all_steps() const { return {0, num_steps_}; }

  // The loads of one step: [ranks].
  std::span<const double> at(int64_t step, int layer) const {
    return cut(tokens_, row(step, layer));
  }
  std::span<double> at(int64_t step, int layer) { return cut(tokens_, row(step, layer)); }
  // The loads of all steps together: [ranks]. Whoever fills in the steps fills this in too: where
  // experts are shared in fractions it is computed from their summed loads, so that the rounding of
  // single steps does not add up.
  std::span<const double> window(int layer) const { return cut(window_, layer); }
  std::span<double> window(int layer) { return cut(window_, layer); }
  // Makes the window the sum of the steps.
  void sum_up_window();

 private:
  int64_t row(int64_t step, int layer) const { return step * num_layers_ + layer; }
  std::span<const double> cut(const std::vector<double>& from, int64_t row) const {
    return std::span(from).subspan(cells(row, num_ranks_), cells(num_ranks_));
  }
  std::span<double> cut(std::vector<double>& from, int64_t row) const {
    return std::span(from).subspan(cells(row, num_ranks_), cells(num_ranks_));
  }

  int64_t num_steps_ = 0;
  int num_layers_ = 0;
  int num_ranks_ = 0;
  std::vector<double> tokens_;  // [steps, layers, ranks]
  std::vector<double> window_;  // [layers, ranks]
};

// Throws InvalidArgument when the load's layers or experts are not the placement's, or it does not
// hold as many counts as it says.
void check_fits(const Placement& placement, const Load& load);

// The loads of the ranks when every expert's tokens are shared equally among its replicas,
// fractions included. All sums run in the order of the slots, so that the same numbers come out
// everywhere. Throws as check_fits().
RankLoads rank_loads(const Placement& placement, const Load& load);
// The same of one layer, which is layer 0 of the result.
RankLoads rank_loads(const Placement& placement, const Load& load, int layer);
// The same for a layer that is no Placement (yet). logical: [slots], the expert in each slot.
RankLoads rank_loads(std::span<const int32_t> logical, SlotRanges slots, const Load& load,
                     int layer);
// The same for callers that have the layer's loads of all steps together already. window:
// [experts], as sum_of_steps() gives it for all steps of the load. Whoever compares several
// placements under one load sums it up once. Throws InvalidArgument when window does not have as
// many experts as the load.
RankLoads rank_loads(std::span<const int32_t> logical, SlotRanges slots, const Load& load,
                     int layer, std::span<const int64_t> window);
// The same of a single step: [ranks]. expert_load: [experts].
std::vector<double> rank_loads(std::span<const int32_t> logical, SlotRanges slots,
                               std::span<const int64_t> expert_load);

// The loads that ranks recorded, whatever their slots held. counts_of_rank[r]: [steps, layers,
// slots of rank r]. Throws InvalidArgument when a rank's counts are not so many rows.
RankLoads recorded_rank_loads(int64_t num_steps, int num_layers,
                              std::span<const std::span<const int32_t>> counts_of_rank);

}  // namespace trimtab
