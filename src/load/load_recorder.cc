// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/load.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// The sums [phases, layers, slots] have a row of slots for each phase and layer.
int64_t row_of(Phase phase, int layer, int num_layers) {
  return (phase == Phase::kPrefill ? 0 : num_layers) + layer;
}

}  // namespace

LoadRecorder::LoadRecorder(int num_layers, int num_slots, int64_t window)
    : num_layers_(num_layers), num_slots_(num_slots), window_(window) {
  const int64_t row = int64_t{num_layers} * num_slots;
  if (num_layers < 1 || num_slots < 0 || window < 0 ||
      (row > 0 && window >= std::numeric_limits<int64_t>::max() / row)) {
    throw InvalidArgument(
        cat("load recorder: ", num_layers, " layers, ", num_slots, " slots, ", window, " steps"));
  }
  counts_.resize(cells(row, window + 1));
  phases_.resize(window + 1);
  nanoseconds_.resize(window + 1);
  epochs_.resize(num_layers);
  sums_.resize(cells(2, row));
}

void LoadRecorder::begin_step(Phase phase) {
  if (open_) throw InvalidArgument("load recorder: the step before is still open");
  open_ = true;
  const int64_t size = int64_t{num_layers_} * num_slots_;
  const int64_t at = place(num_steps_);
  std::fill_n(counts_.begin() + at * size, size, 0);
  phases_[at] = phase;
  nanoseconds_[at] = 0;
}

std::span<int32_t> LoadRecorder::counts(int layer) {
  if (!open_)
    throw InvalidArgument(cat("load recorder: counts of layer ", layer, " without an open step"));
  epoch(layer);
  return {counts_.data() + (place(num_steps_) * num_layers_ + layer) * num_slots_,
          cells(num_slots_)};
}

int64_t& LoadRecorder::expert_nanoseconds() {
  if (!open_) throw InvalidArgument("load recorder: times of experts without an open step");
  return nanoseconds_[place(num_steps_)];
}

void LoadRecorder::keep_step() {
  count_step();
  ++num_steps_;
}

void LoadRecorder::count_step() {
  if (!open_) throw InvalidArgument("load recorder: no open step to keep");
  const int64_t size = int64_t{num_layers_} * num_slots_;
  const int64_t at = place(num_steps_);
  int64_t* sums = sums_.data() + row_of(phases_[at], 0, num_layers_) * num_slots_;
  const int32_t* counts = counts_.data() + at * size;
  int64_t rows = 0;
  for (int64_t i = 0; i < size; ++i) {
    sums[i] += counts[i];
    rows += counts[i];
  }
  num_rows_ += rows;
  open_ = false;
}

void LoadRecorder::skip_step() {
  if (!open_) throw InvalidArgument("load recorder: no open step to skip");
  open_ = false;
}

void LoadRecorder::begin_epoch(int layer, uint64_t version) {
  if (open_)
    throw InvalidArgument(cat("load recorder: a new epoch of layer ", layer, " within a step"));
  epoch(layer);
  epochs_[layer] = {version, num_steps_};
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode})
    std::fill_n(sums_.begin() + row_of(phase, layer, num_layers_) * num_slots_, num_slots_, 0);
}

const LoadRecorder::Epoch& LoadRecorder::epoch(int layer) const {
  if (layer < 0 || layer >= num_layers_) {
    throw InvalidArgument(cat("load recorder: layer ", layer, " of ", num_layers_));
  }
  return epochs_[layer];
}

int64_t LoadRecorder::valid_steps(int layer) const {
  return std::min(num_steps_ - epoch(layer).first_step, window_);
}

// The place in the ring of the i-th of the layer's valid steps.
int64_t LoadRecorder::valid_place(int64_t i, int layer) const {
  const int64_t valid = valid_steps(layer);
  if (i < 0 || i >= valid) throw InvalidArgument(cat("load recorder: step ", i, " of ", valid));
  return place(num_steps_ - valid + i);
}

std::span<const int32_t> LoadRecorder::step(int64_t i, int layer) const {
  return {counts_.data() + (valid_place(i, layer) * num_layers_ + layer) * num_slots_,
          cells(num_slots_)};
}

Phase LoadRecorder::phase(int64_t i, int layer) const {
  return phases_[valid_place(i, layer)];
}

std::span<const int64_t> LoadRecorder::sum(int layer, Phase phase) const {
  epoch(layer);
  return {sums_.data() + row_of(phase, layer, num_layers_) * num_slots_, cells(num_slots_)};
}

int64_t LoadRecorder::recorded_steps() const {
  int64_t steps = window_;
  for (int layer = 0; layer < num_layers_; ++layer) steps = std::min(steps, valid_steps(layer));
  return steps;
}

RecordedSteps::RecordedSteps(const LoadRecorder& recorder, int64_t steps)
    : recorder_(recorder), steps_(steps), end_(recorder.num_steps_), num_rows_(recorder.num_rows_) {
  if (steps < 0 || steps > recorder.recorded_steps()) {
    throw InvalidArgument(
        cat("a window of ", steps, " steps, ", recorder.recorded_steps(), " are recorded"));
  }
}

std::vector<int32_t> LoadRecorder::recorded() const {
  const int64_t steps = recorded_steps();
  std::vector<int32_t> all;
  all.reserve(cells(steps, num_layers_, num_slots_));
  for (int64_t i = 0; i < steps; ++i) {
    for (int layer = 0; layer < num_layers_; ++layer) {
      const auto row = step(valid_steps(layer) - steps + i, layer);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

namespace {

// Adds what the slots of one rank got to the logical experts they hold.
void add_rank(const Placement& placement, int rank, std::span<const int32_t> counts, Load& load) {
  const int slots = placement.slots_of_rank(rank);
  const int32_t* count = counts.data();
  int64_t* into = load.counts.data();
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int layer = 0; layer < load.num_layers; ++layer, into += load.num_experts) {
      const auto held = placement.logical(layer).subspan(placement.first_slot(rank), slots);
      for (int s = 0; s < slots; ++s, ++count) {
        if (*count < 0) {
          throw InvalidArgument(cat("merge of loads: rank ", rank, ", step ", step, ", layer ",
                                    layer, ", slot ", s, " has count ", *count));
        }
        into[held[s]] += *count;
      }
    }
  }
}

}  // namespace

Load merge_loads(const Placement& placement, int64_t num_steps,
                 std::span<const std::span<const int32_t>> counts_of_rank) {
  const int ranks = placement.num_ranks();
  if (num_steps < 0 || std::ssize(counts_of_rank) != ranks) {
    throw InvalidArgument(cat("merge of loads: ", num_steps, " steps of ", counts_of_rank.size(),
                              " ranks, the placement has ", ranks));
  }
  const int64_t rows = num_steps * placement.num_layers();
  for (int r = 0; r < ranks; ++r) {
    const int64_t size = std::ssize(counts_of_rank[r]);
    const int slots = placement.slots_of_rank(r);
    if (size != rows * slots) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " has ", size, " counts, not [",
                                num_steps, ", ", placement.num_layers(), ", ", slots, "]"));
    }
  }
  Load load{num_steps, placement.num_layers(), placement.num_experts(), {}};
  load.counts.resize(cells(rows, placement.num_experts()));
  for (int r = 0; r < ranks; ++r) add_rank(placement, r, counts_of_rank[r], load);
  return load;
}

Load merge_loads(const Placement& placement, std::span<const LoadRecorder* const> recorders) {
  if (std::ssize(recorders) != placement.num_ranks()) {
    throw InvalidArgument(cat("merge of loads: ", recorders.size(),
                              " recorders, the placement has ", placement.num_ranks(), " ranks"));
  }
  std::vector<std::vector<int32_t>> counts;
  for (int r = 0; r < placement.num_ranks(); ++r) {
    const LoadRecorder& recorder = *recorders[r];
    if (recorder.recorded_steps() != recorders[0]->recorded_steps()) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " recorded ", recorder.recorded_steps(),
                                " steps, rank 0 ", recorders[0]->recorded_steps()));
    }
    if (recorder.num_layers() != placement.num_layers() ||
        recorder.num_slots() != placement.slots_of_rank(r)) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " recorded ", recorder.num_layers(),
                                " layers of ", recorder.num_slots(), " slots, the placement has ",
                                placement.num_layers(), " of ", placement.slots_of_rank(r)));
    }
    counts.push_back(recorder.recorded());
  }
  const std::vector<std::span<const int32_t>> views(counts.begin(), counts.end());
  return merge_loads(placement, recorders[0]->recorded_steps(), views);
}

}  // namespace trimtab
