// SPDX-License-Identifier: Apache-2.0
// How busy experts and ranks are. Load counts tokens per expert, per layer and step; PAR (peak-to-average rank load) is
// what it costs: 1.0 means every rank has the same number of rows, 2.0 that all wait for one with twice the mean.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/placement.h"

namespace trimtab {

// Load of logical experts over time.
struct Load {
  int64_t num_steps = 0;
  int num_layers = 0;
  int num_experts = 0;
  std::vector<int64_t> counts;  // [steps, layers, experts]

  std::span<const int64_t> at(int64_t step, int layer) const {
    return {counts.data() + (step * num_layers + layer) * num_experts, static_cast<size_t>(num_experts)};
  }
};

// max / mean of the ranks' loads; 1.0 when nothing was routed.
double par(std::span<const int64_t> rank_load);
// Rank loads of one layer under a placement without replicas: [ranks]. Throws InvalidArgument when sizes differ or an
// expert has several slots: its load alone does not say which of them had the rows.
std::vector<int64_t> rank_load(const Placement& placement, int layer, std::span<const int64_t> expert_load);
// PAR of each layer, of its rank loads summed over all steps: [layers]. Throws as rank_load().
std::vector<double> par_per_layer(const Placement& placement, const Load& load);

// What one rank's slots got, step by step. The rows of a step are written by the rank's own thread from the dispatch
// counts (ForwardOptions::local_counts); nothing is allocated after construction. Not thread-safe.
class LoadRecorder {
 public:
  // Reserves max_steps * num_layers * num_slots counters. num_slots: slots of this rank; may be 0.
  LoadRecorder(int num_layers, int num_slots, int64_t max_steps);

  // Opens the next step with all counts at 0. Throws InvalidArgument when max_steps are recorded already.
  void begin_step();
  // [num_slots]: the open step's counts of a layer, to be filled. Several calls in one step (microbatches) must add to
  // it. Throws InvalidArgument when no step is open or the layer is out of range.
  std::span<int32_t> counts(int layer);
  // Drops the open step: warm-up, profile and forced-balance runs are no load. Throws InvalidArgument when none is
  // open.
  void skip_step();

  // Steps kept so far, the open one included.
  int64_t num_steps() const { return num_steps_; }
  int num_layers() const { return num_layers_; }
  int num_slots() const { return num_slots_; }
  // [num_steps, layers, slots]
  std::span<const int32_t> recorded() const;

 private:
  int num_layers_;
  int num_slots_;
  int64_t max_steps_;
  int64_t num_steps_ = 0;
  bool open_ = false;
  std::vector<int32_t> counts_;  // [max_steps, layers, slots]
};

// The load of the logical experts from what all ranks' slots got: counts_of_rank[r] is [num_steps, layers, slots of
// rank r], as recorded under this placement. Throws InvalidArgument when sizes do not fit (so ranks recorded different
// numbers of steps) or a count is negative.
Load merge_loads(const Placement& placement, int64_t num_steps,
                 std::span<const std::span<const int32_t>> counts_of_rank);
// The same for recorders in one process, [ranks] in order.
Load merge_loads(const Placement& placement, std::span<const LoadRecorder* const> recorders);

}  // namespace trimtab
