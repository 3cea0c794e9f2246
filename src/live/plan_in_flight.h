// SPDX-License-Identifier: Apache-2.0
// One plan on its way from loads to slots: the loads of a window are gathered on rank 0, a plan is
// made there and shared with all ranks, and then the layers that change are staged and switched, a
// few at a time. This object makes the background jobs of these steps and keeps what they bring
// about. Which job runs when is the Balancer's decision (balancer.cc), by what the ranks agree on
// (agreement.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "live/planner.h"
#include "live/worker.h"
#include "trimtab/balancer.h"

namespace trimtab {

// The placement after these moves.
Placement with_moves(const Placement& placement, std::span<const Move> moves, uint64_t version);
// The moves that lead to other experts in the slots, logical: [layers, slots]. Where the weights
// come from is left open.
std::vector<Move> moves_to(const Placement& from, std::span<const int32_t> logical);

// What a job makes may be read, and the next job be made, only while no job runs.
class PlanInFlight {
 public:
  // Collective. config and parts must outlive this object.
  PlanInFlight(const BalancerConfig& config, const Balancer::Parts& parts, Communicator& comm);

  // Gather: brings every rank's packed window (window.h) to rank 0, where windows() then has them.
  void gather(std::span<const std::byte> window);
  std::span<const std::vector<std::byte>> windows() const { return windows_; }

  // Plan, on rank 0 alone. The job owns what it needs, so a planner that hangs may be left behind.
  Worker::Job make(PlanTask task);
  // The plan comes too late: whatever its job still makes of it is not read.
  void drop() { result_ = nullptr; }
  PlanResult& result() { return *result_; }

  // Share: tells all ranks the moves of rank 0's plan, and works out where their weights come from.
  // A plan that is not carried out has none. current must stay as it is until the job is done.
  // speeds: what rank 0 tells of the ranks' speeds; empty: nothing. All ranks have it in speeds().
  Worker::Job share(const Placement& current, std::vector<int32_t> speeds = {});
  std::span<const int32_t> speeds() const { return speeds_; }

  // Stage: brings the experts of the next layers to this rank's spares: as many layers as all
  // ranks have spares for, at least one and at most BalancerConfig::layers_in_flight. `step` tells
  // the arrows of this staging from those of others in traces.
  bool has_layers() const { return !layers_.empty(); }
  Worker::Job stage(const Placement& current, int64_t step);
  struct StagedLayer {
    int layer = 0;
    std::vector<Move> moves;
    int64_t bytes = 0;  // bytes sent between ranks for these moves
    StageResult result;
    std::shared_ptr<const SplitTable> table;  // null unless result.ok
  };
  // The layers whose staging job is over. They leave the plan.
  std::vector<StagedLayer> take_staged();
  // The placement with those of them that were staged, one version above the last.
  Placement take_next_placement() { return *std::exchange(next_, std::nullopt); }
  // The staged experts become the layer's, or are dropped.
  void commit(const StagedLayer& staged);
  void roll_back(const StagedLayer& staged);

  // The plan so far.
  struct Totals {
    double predicted = 0;  // gain on the window that the plan was made from
    int64_t switched_layers = 0;
    int64_t moves = 0;   // moves of the layers that were switched
    int64_t bytes = 0;   // bytes sent between ranks, for layers that were rolled back too
    double seconds = 0;  // time that stagings took
  };
  const Totals& totals() const { return totals_; }
  // The placement from before the plan.
  const Placement& before() const { return *before_; }

 private:
  void prepare(const Placement& current, std::span<const std::byte> message);
  int64_t layers_that_fit() const;
  void trace_moves(std::span<const Move> moves, const Placement& current, int64_t step) const;

  const BalancerConfig& config_;
  const Balancer::Parts& parts_;
  const int rank_;
  std::unique_ptr<Communicator> comm_;

  std::vector<int64_t> spares_;  // [ranks] that there are; empty: none are needed

  std::vector<std::vector<std::byte>> windows_;  // [ranks], on rank 0
  std::shared_ptr<PlanResult> result_;           // rank 0 alone

  std::optional<Placement> before_, target_;
  // A layer still to switch.
  struct NextLayer {
    std::vector<Move> moves;
    int64_t bytes = 0;
    std::vector<int> spares;  // [ranks] that they need
  };
  std::vector<NextLayer> layers_;  // the next last
  std::vector<int32_t> speeds_;    // [ranks], or empty
  std::vector<StagedLayer> staged_;
  std::optional<Placement> next_;
  Totals totals_;
  std::optional<Migrator> migrator_;  // none where no weights move
};

}  // namespace trimtab
