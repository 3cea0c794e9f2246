// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/load.h"

namespace trimtab {

LoadRecorder::LoadRecorder(int num_layers, int num_slots, int64_t max_steps)
    : num_layers_(num_layers), num_slots_(num_slots), max_steps_(max_steps) {
  const int64_t row = int64_t{num_layers} * num_slots;
  if (num_layers < 1 || num_slots < 0 || max_steps < 0 ||
      (row > 0 && max_steps > std::numeric_limits<int64_t>::max() / row)) {
    throw InvalidArgument(cat("load recorder: ", num_layers, " layers, ", num_slots, " slots, ", max_steps, " steps"));
  }
  counts_.resize(static_cast<size_t>(row * max_steps));
}

void LoadRecorder::begin_step() {
  if (num_steps_ == max_steps_) {
    throw InvalidArgument(cat("load recorder: all of its ", max_steps_, " steps are recorded"));
  }
  ++num_steps_;
  open_ = true;
  const int64_t size = int64_t{num_layers_} * num_slots_;
  const auto step = counts_.begin() + (num_steps_ - 1) * size;
  std::fill(step, step + size, 0);  // a skipped step may have left something
}

std::span<int32_t> LoadRecorder::counts(int layer) {
  if (!open_) throw InvalidArgument(cat("load recorder: counts of layer ", layer, " without an open step"));
  if (layer < 0 || layer >= num_layers_) {
    throw InvalidArgument(cat("load recorder: layer ", layer, " of ", num_layers_));
  }
  const auto slots = static_cast<size_t>(num_slots_);
  return std::span(counts_).subspan(static_cast<size_t>((num_steps_ - 1) * num_layers_ + layer) * slots, slots);
}

void LoadRecorder::skip_step() {
  if (!open_) throw InvalidArgument("load recorder: no open step to skip");
  --num_steps_;
  open_ = false;
}

std::span<const int32_t> LoadRecorder::recorded() const {
  return std::span(counts_).first(static_cast<size_t>(num_steps_ * num_layers_ * num_slots_));
}

namespace {

// Adds what the slots of one rank got to the logical experts they hold.
void add_rank(const Placement& placement, int rank, std::span<const int32_t> counts, Load& load) {
  const auto slots = static_cast<size_t>(placement.slots_of_rank(rank));
  const int32_t* count = counts.data();
  int64_t* into = load.counts.data();
  for (int64_t step = 0; step < load.num_steps; ++step) {
    for (int layer = 0; layer < load.num_layers; ++layer, into += load.num_experts) {
      const auto held = placement.logical(layer).subspan(static_cast<size_t>(placement.first_slot(rank)), slots);
      for (size_t s = 0; s < slots; ++s, ++count) {
        if (*count < 0) {
          throw InvalidArgument(cat("merge of loads: rank ", rank, ", step ", step, ", layer ", layer, ", slot ", s,
                                    " has count ", *count));
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
  if (num_steps < 0 || counts_of_rank.size() != static_cast<size_t>(ranks)) {
    throw InvalidArgument(
        cat("merge of loads: ", num_steps, " steps of ", counts_of_rank.size(), " ranks, the placement has ", ranks));
  }
  const size_t rows = static_cast<size_t>(num_steps) * static_cast<size_t>(placement.num_layers());
  for (int r = 0; r < ranks; ++r) {
    const size_t size = counts_of_rank[static_cast<size_t>(r)].size();
    const int slots = placement.slots_of_rank(r);
    if (size != rows * static_cast<size_t>(slots)) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " has ", size, " counts, not [", num_steps, ", ",
                                placement.num_layers(), ", ", slots, "]"));
    }
  }
  Load load{num_steps, placement.num_layers(), placement.num_experts(), {}};
  load.counts.resize(rows * static_cast<size_t>(placement.num_experts()));
  for (int r = 0; r < ranks; ++r) add_rank(placement, r, counts_of_rank[static_cast<size_t>(r)], load);
  return load;
}

Load merge_loads(const Placement& placement, std::span<const LoadRecorder* const> recorders) {
  if (recorders.size() != static_cast<size_t>(placement.num_ranks())) {
    throw InvalidArgument(
        cat("merge of loads: ", recorders.size(), " recorders, the placement has ", placement.num_ranks(), " ranks"));
  }
  std::vector<std::span<const int32_t>> counts;
  for (size_t r = 0; r < recorders.size(); ++r) {
    const LoadRecorder& recorder = *recorders[r];
    if (recorder.num_steps() != recorders[0]->num_steps()) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " recorded ", recorder.num_steps(), " steps, rank 0 ",
                                recorders[0]->num_steps()));
    }
    if (recorder.num_layers() != placement.num_layers() ||
        recorder.num_slots() != placement.slots_of_rank(static_cast<int>(r))) {
      throw InvalidArgument(cat("merge of loads: rank ", r, " recorded ", recorder.num_layers(), " layers of ",
                                recorder.num_slots(), " slots, the placement has ", placement.num_layers(), " of ",
                                placement.slots_of_rank(static_cast<int>(r))));
    }
    counts.push_back(recorder.recorded());
  }
  return merge_loads(placement, recorders[0]->num_steps(), counts);
}

}  // namespace trimtab
