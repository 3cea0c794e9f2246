// SPDX-License-Identifier: Apache-2.0
// A layer's placement that a search changes slot by slot, with what every change does to the peak
// loads, to the replicas on each node and to the number of moves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/matrix.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/topology.h"

namespace trimtab {

// A slot gets another expert.
struct SlotChange {
  int32_t slot;
  int32_t expert;
};

class MutableLayer {
 public:
  // topology must outlive this. placement: [slots]. loads: each [experts], first that of the whole
  // window, then those of runs of steps, or none. current: the placement that moves are counted
  // from; empty: they are not.
  MutableLayer(SlotRanges slots, const Topology& topology, int num_experts,
               const std::vector<std::vector<double>>& loads, std::span<const int32_t> current,
               std::vector<int32_t> placement);

  const std::vector<int32_t>& placement() const { return placement_; }
  SlotRanges slots() const { return slots_; }
  int ranks() const { return slots_.num_ranks(); }
  int num_experts() const { return static_cast<int>(std::ssize(slots_of_)); }
  int rank_of(int slot) const { return rank_of_slot_[cells(slot)]; }
  int node_of(int slot) const { return topology_.node(rank_of(slot)); }
  int32_t expert(int slot) const { return placement_[cells(slot)]; }
  bool holds(int rank, int32_t expert) const;
  int32_t replicas(int32_t expert) const {
    return static_cast<int32_t>(std::ssize(slots_of(expert)));
  }
  // The slots that hold an expert, in no order.
  std::span<const int32_t> slots_of(int32_t expert) const { return slots_of_[cells(expert)]; }
  // Of the whole window: of an expert, and of each of its replicas.
  float load(int32_t expert) const { return load_(expert, 0); }
  float load_of_replica(int32_t expert) const { return share_(expert, 0); }
  const Matrix<int32_t>& on_node() const { return on_node_; }  // [experts, nodes] replicas

  // Makes the changes, of different slots; undo() takes back the last ones. The experts of which
  // replicas came or went are then touched(), ascending.
  void change(std::span<const SlotChange> changes);
  void undo();
  std::span<const int32_t> touched() const { return touched_; }

  struct Peaks {
    double window = 0, runs = 0;
  };
  // Bounds from below the peaks after two slots of different ranks have exchanged their experts, in
  // far less time than change() takes.
  Peaks peaks_at_least(int slot, int other) const;

  // Makes it this placement.
  void go_to(const std::vector<int32_t>& placement);

  // Loads are in units of their mean over the ranks. The peak of the window, and the mean peak of
  // the runs; 0 where there are none.
  double window_peak() const { return window_peak_; }
  double runs_peak() const { return runs_peak_; }
  int moves() const { return moves_; }

 private:
  void swap_in();
  void exchange();
  void count(int slot, int change);
  void update_share(int32_t expert);
  void add_up(int rank);
  void update_peaks();
  bool is_move(int slot) const;

  const SlotRanges slots_;
  const Topology& topology_;
  const std::span<const int32_t> current_;
  std::vector<int32_t> placement_;
  std::vector<int32_t> rank_of_slot_;
  std::vector<std::vector<int32_t>> slots_of_;
  Matrix<int32_t> on_node_;
  int moves_ = 0;

  int width_ = 0, runs_ = 0;    // columns of the tables below; those that are used, less one
  Matrix<float> load_, share_;  // [experts, loads] of an expert, and of one of its replicas
  Matrix<float> rank_load_;     // [ranks, loads]
  std::vector<float> peaks_;    // [loads]
  double window_peak_ = 0, runs_peak_ = 0;

  std::vector<SlotChange> changes_;  // what the slots held before
  std::vector<int32_t> touched_, old_replicas_, changed_replicas_, changed_ranks_;
  Matrix<float> saved_load_;  // [changed ranks, loads] before the changes
  std::vector<float> saved_peaks_;
  double saved_window_peak_ = 0, saved_runs_peak_ = 0;
};

}  // namespace trimtab
