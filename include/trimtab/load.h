// SPDX-License-Identifier: Apache-2.0
// How busy experts are. Load counts tokens per expert, per layer and step; a LoadRecorder counts
// them while the layers run. trimtab/par.h says how level the ranks are under such loads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/placement.h"
#include "trimtab/table.h"

namespace trimtab {

// The steps [first, last).
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
};

// Load of logical experts over time.
struct Load {
  int64_t num_steps = 0;
  int num_layers = 0;
  int num_experts = 0;
  std::vector<int64_t> counts;  // [steps, layers, experts]

  std::span<const int64_t> at(int64_t step, int layer) const {
    return {counts.data() + (step * num_layers + layer) * num_experts, cells(num_experts)};
  }
};

// The loads of one layer summed over some steps: [experts].
std::vector<int64_t> sum_of_steps(const Load& load, int layer, StepRange steps);
// Some steps alone.
Load steps_of(const Load& load, StepRange steps);

// What a step was for: a step in which any rank runs a prompt is prefill. All ranks must call a
// step the same.
enum class Phase : uint8_t { kPrefill, kDecode };

// What one rank's slots got, step by step, in a ring that keeps the latest steps, and summed up.
// The rows of a step are written by the rank's own thread from the dispatch counts
// (ForwardOptions::local_counts): there is no extra pass, and only rows that were routed count, so
// over all ranks a kept step sums to tokens x picks. Each layer has an epoch, the placement under
// which its counts were taken: when other experts come into its slots, its counts begin anew.
// Nothing is allocated after construction. Not thread-safe.
class LoadRecorder {
 public:
  // window: steps that the ring keeps; the next one takes the place of the oldest. num_slots: of
  // this rank, may be 0.
  LoadRecorder(int num_layers, int num_slots, int64_t window);

  // Opens a step with all counts at 0. Throws InvalidArgument when one is open.
  void begin_step(Phase phase = Phase::kDecode);
  // [num_slots]: the open step's counts of a layer, to be filled. Several calls in one step
  // (microbatches) must add to it. Throws InvalidArgument when no step is open or the layer is out
  // of range.
  std::span<int32_t> counts(int layer);
  // The time that this rank's experts take in the open step, to be added to by whoever measures it
  // (ForwardOptions::expert_nanoseconds). Throws InvalidArgument when no step is open.
  int64_t& expert_nanoseconds();
  // Closes the open step: kept; its rows counted, but not kept in the ring, whose steps are those
  // of another phase; or dropped, since warm-up, profile and forced-balance runs are no load. All
  // throw InvalidArgument when none is open.
  void keep_step();
  void count_step();
  void skip_step();
  // From the next step on the layer's slots hold what this version of the placement says. Throws
  // InvalidArgument while a step is open.
  void begin_epoch(int layer, uint64_t version);

  int num_layers() const { return num_layers_; }
  int num_slots() const { return num_slots_; }
  int64_t window() const { return window_; }
  // Steps kept since construction.
  int64_t num_steps() const { return num_steps_; }
  // Rows of all layers in these steps, also of epochs that are over.
  int64_t num_rows() const { return num_rows_; }
  uint64_t version(int layer) const { return epoch(layer).version; }

  // Steps of the layer's epoch that the ring still has; step(0, layer) is the oldest of them:
  // [num_slots].
  int64_t valid_steps(int layer) const;
  std::span<const int32_t> step(int64_t i, int layer) const;
  Phase phase(int64_t i, int layer) const;
  // [num_slots] all steps of the layer's epoch, also those that the ring has no more.
  std::span<const int64_t> sum(int layer, Phase phase) const;

  // The steps that the ring has of every layer, and a copy of them, oldest first: [steps, layers,
  // slots].
  int64_t recorded_steps() const;
  std::vector<int32_t> recorded() const;

 private:
  friend class RecordedSteps;
  struct Epoch {
    uint64_t version = 0;
    int64_t first_step = 0;
  };

  const Epoch& epoch(int layer) const;
  int64_t place(int64_t step) const { return step % (window_ + 1); }  // in the ring
  int64_t valid_place(int64_t i, int layer) const;

  int num_layers_;
  int num_slots_;
  int64_t window_;
  int64_t num_steps_ = 0;
  int64_t num_rows_ = 0;
  bool open_ = false;
  std::vector<int32_t> counts_;  // [window + 1, layers, slots]: there is a place for the open step
  std::vector<Phase> phases_;    // [window + 1]
  std::vector<int64_t> nanoseconds_;  // [window + 1] that experts took
  std::vector<Epoch> epochs_;         // [layers]
  std::vector<int64_t> sums_;         // [phases, layers, slots]
};

// The latest steps of a recorder as they are when this is made. Another thread may read them while
// the recorder goes on, as long as no layer begins an epoch and no more than window() - size()
// further steps are kept.
class RecordedSteps {
 public:
  // steps: how many, oldest first. Throws InvalidArgument when the recorder has fewer.
  RecordedSteps(const LoadRecorder& recorder, int64_t steps);

  int64_t size() const { return steps_; }
  int num_layers() const { return recorder_.num_layers_; }
  int num_slots() const { return recorder_.num_slots_; }
  int64_t num_rows() const { return num_rows_; }  // LoadRecorder::num_rows() then
  Phase phase(int64_t i) const { return recorder_.phases_[place(i)]; }
  int64_t expert_nanoseconds(int64_t i) const { return recorder_.nanoseconds_[place(i)]; }
  std::span<const int32_t> step(int64_t i, int layer) const {  // [num_slots]
    return {recorder_.counts_.data() +
                (place(i) * recorder_.num_layers_ + layer) * recorder_.num_slots_,
            cells(recorder_.num_slots_)};
  }

 private:
  int64_t place(int64_t i) const { return recorder_.place(end_ - steps_ + i); }

  const LoadRecorder& recorder_;
  int64_t steps_;
  int64_t end_;  // steps that the recorder had kept
  int64_t num_rows_;
};

// The load of the logical experts from what all ranks' slots got: counts_of_rank[r] is [num_steps,
// layers, slots of rank r], as recorded under this placement. Throws InvalidArgument when sizes do
// not fit (so ranks recorded different numbers of steps) or a count is negative.
Load merge_loads(const Placement& placement, int64_t num_steps,
                 std::span<const std::span<const int32_t>> counts_of_rank);
// The same for recorders in one process, [ranks] in order.
Load merge_loads(const Placement& placement, std::span<const LoadRecorder* const> recorders);

}  // namespace trimtab
