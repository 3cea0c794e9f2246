// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/mutable_layer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "trimtab/table.h"

namespace trimtab {
namespace {

constexpr int kLanes = 8;

void sort_and_unite(std::vector<int32_t>& list) {
  std::ranges::sort(list);
  list.erase(std::ranges::unique(list).begin(), list.end());
}

}  // namespace

MutableLayer::MutableLayer(SlotRanges slots, const Topology& topology, int num_experts,
                           const std::vector<std::vector<double>>& loads,
                           std::span<const int32_t> current, std::vector<int32_t> placement)
    : slots_(slots),
      topology_(topology),
      current_(current),
      placement_(std::move(placement)),
      slots_of_(cells(num_experts)),
      on_node_(num_experts, topology.num_nodes(), 0) {
  for (int rank = 0; rank < ranks(); ++rank) rank_of_slot_.resize(cells(slots.end(rank)), rank);
  for (int s = 0; s < slots.num_slots(); ++s) {
    count(s, 1);
    moves_ += is_move(s) ? 1 : 0;
  }
  runs_ = static_cast<int>(std::ssize(loads)) - 1;
  width_ = static_cast<int>((std::ssize(loads) + kLanes - 1) / kLanes * kLanes);
  load_ = share_ = Matrix<float>(num_experts, width_, 0);
  rank_load_ = Matrix<float>(ranks(), width_, 0);
  peaks_.resize(cells(width_));
  for (size_t v = 0; v < loads.size(); ++v) {
    const double mean = std::accumulate(loads[v].begin(), loads[v].end(), 0.0) / ranks();
    for (int e = 0; e < num_experts && mean > 0; ++e)
      load_(e, static_cast<int64_t>(v)) = static_cast<float>(loads[v][cells(e)] / mean);
  }
  for (int e = 0; e < num_experts; ++e) update_share(e);
  for (int rank = 0; rank < ranks(); ++rank) add_up(rank);
  update_peaks();
}

bool MutableLayer::holds(int rank, int32_t expert) const {
  const auto held = slots_.of(rank, std::span(placement_));
  return std::ranges::find(held, expert) != held.end();
}

void MutableLayer::change(std::span<const SlotChange> changes) {
  changes_.assign(changes.begin(), changes.end());
  swap_in();
}

void MutableLayer::undo() {
  exchange();
  for (size_t i = 0; i < changed_ranks_.size(); ++i)
    std::ranges::copy(std::as_const(saved_load_)[static_cast<int64_t>(i)],
                      rank_load_[changed_ranks_[i]].begin());
  peaks_.swap(saved_peaks_);
  window_peak_ = saved_window_peak_;
  runs_peak_ = saved_runs_peak_;
}

void MutableLayer::go_to(const std::vector<int32_t>& placement) {
  changes_.clear();
  for (int32_t s = 0; s < std::ssize(placement); ++s) {
    if (expert(s) != placement[cells(s)]) changes_.push_back({s, placement[cells(s)]});
  }
  swap_in();
}

void MutableLayer::swap_in() {
  touched_.clear();
  changed_ranks_.clear();
  for (const SlotChange& change : changes_) {
    touched_.push_back(expert(change.slot));
    touched_.push_back(change.expert);
    changed_ranks_.push_back(rank_of(change.slot));
  }
  sort_and_unite(touched_);
  exchange();
  for (const int32_t e : changed_replicas_) {
    for (const int32_t slot : slots_of(e)) changed_ranks_.push_back(rank_of(slot));
  }
  sort_and_unite(changed_ranks_);
  if (saved_load_.values().size() < cells(std::ssize(changed_ranks_), width_))
    saved_load_ = Matrix<float>(std::ssize(changed_ranks_), width_);
  for (size_t i = 0; i < changed_ranks_.size(); ++i) {
    const std::span<const float> load = std::as_const(rank_load_)[changed_ranks_[i]];
    std::ranges::copy(load, saved_load_[static_cast<int64_t>(i)].begin());
    add_up(changed_ranks_[i]);
  }
  saved_peaks_ = peaks_;
  saved_window_peak_ = window_peak_;
  saved_runs_peak_ = runs_peak_;
  update_peaks();
}

// Makes the changes, which then say what was there before.
void MutableLayer::exchange() {
  old_replicas_.clear();
  for (const int32_t e : touched_) old_replicas_.push_back(replicas(e));
  for (SlotChange& change : changes_) {
    moves_ -= is_move(change.slot) ? 1 : 0;
    count(change.slot, -1);
    std::swap(placement_[cells(change.slot)], change.expert);
    count(change.slot, 1);
    moves_ += is_move(change.slot) ? 1 : 0;
  }
  changed_replicas_.clear();
  for (size_t i = 0; i < touched_.size(); ++i) {
    if (replicas(touched_[i]) == old_replicas_[i]) continue;
    changed_replicas_.push_back(touched_[i]);
    update_share(touched_[i]);
  }
}

void MutableLayer::count(int slot, int change) {
  std::vector<int32_t>& slots = slots_of_[cells(expert(slot))];
  if (change > 0) {
    slots.push_back(slot);
  } else {
    *std::ranges::find(slots, slot) = slots.back();
    slots.pop_back();
  }
  on_node_(expert(slot), node_of(slot)) += change;
}

void MutableLayer::update_share(int32_t expert) {
  const float part = 1 / static_cast<float>(std::max(1, replicas(expert)));
  const std::span<const float> load = std::as_const(load_)[expert];
  std::ranges::transform(load, share_[expert].begin(), [&](float x) { return x * part; });
}

void MutableLayer::add_up(int rank) {
  const std::span<float> sum = rank_load_[rank];
  std::ranges::fill(sum, 0.0F);
  for (const int32_t e : slots_.of(rank, std::span(placement_))) {
    const std::span<const float> share = std::as_const(share_)[e];
    for (size_t v = 0; v < share.size(); ++v) sum[v] += share[v];
  }
}

void MutableLayer::update_peaks() {
  float sum = 0;
  for (int first = 0; first < width_; first += kLanes) {
    std::array<float, kLanes> peak{};
    for (int rank = 0; rank < ranks(); ++rank) {
      const float* load = rank_load_[rank].data() + first;
      for (size_t v = 0; v < kLanes; ++v) peak[v] = std::max(peak[v], load[v]);
    }
    std::ranges::copy(peak, peaks_.begin() + first);
    if (first == 0) window_peak_ = static_cast<double>(std::exchange(peak[0], 0.0F));
    for (const float x : peak) sum += x;
  }
  runs_peak_ = runs_ > 0 ? static_cast<double>(sum) / runs_ : 0;
}

MutableLayer::Peaks MutableLayer::peaks_at_least(int slot, int other) const {
  const float* a = rank_load_[rank_of(slot)].data();
  const float* b = rank_load_[rank_of(other)].data();
  const float* out = share_[expert(slot)].data();
  const float* in = share_[expert(other)].data();
  const auto peak = [&](int v) {
    const float shift = in[v] - out[v];
    // The peak of a third rank stays.
    const float third = std::max(a[v], b[v]) < peaks_[cells(v)] ? peaks_[cells(v)] : 0.0F;
    return std::max(third, std::max(a[v] + shift, b[v] - shift));
  };
  std::array<float, kLanes> sum{};
  for (int first = 0; first < width_; first += kLanes) {
    for (int v = 0; v < kLanes; ++v) sum[cells(v)] += peak(first + v);
  }
  const float window = peak(0);
  const float runs = std::accumulate(sum.begin(), sum.end(), -window);
  return {static_cast<double>(window), runs_ > 0 ? static_cast<double>(runs) / runs_ : 0};
}

bool MutableLayer::is_move(int slot) const {
  if (current_.empty()) return false;
  const auto now = slots_.of(rank_of(slot), current_);
  return std::ranges::find(now, expert(slot)) == now.end();
}

}  // namespace trimtab
