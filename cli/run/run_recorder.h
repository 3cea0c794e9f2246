// SPDX-License-Identifier: Apache-2.0
// Records the rows that the experts of a run got: always the sums over the steps, and, where they
// are asked for, the numbers of each step. Memory does not grow with the steps, which go to a
// StepLog.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cli/run/step_log.h"
#include "trimtab/communicator.h"
#include "trimtab/cost_model.h"
#include "trimtab/layout.h"
#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/rank_loads.h"
#include "trimtab/token_recorder.h"

namespace trimtab::cli {

// A run in three parts of as many steps to within one; none when it has fewer than three steps.
std::vector<StepRange> thirds(int64_t num_steps);

// What is kept of each step, beside the sums.
struct StepWants {
  bool rank_rows = false;    // [layers, ranks]
  bool rank_times = false;   // [layers, ranks] by the cost
  bool expert_rows = false;  // [layers, experts]
  // Above 0: a sample of the tokens too, with so many picks in a layer.
  int sampled_picks = 0;
  // Which ranks have the same sequences, of which one records the tokens; none: each has its own.
  std::optional<ParallelLayout> layout = {};
};

// One for all ranks of this process. A rank is a writer, and add_step() is called by its own
// thread.
class RunRecorder {
 public:
  // ranks: of the run. writers: those of this process; processes have one each.
  RunRecorder(const Placement& start, int ranks, int writers, StepWants wants);

  // The rows of the step that is open in `recorder`, whose slots hold what `now` says. rank: of the
  // run; writer: the same, or 0 in a process of one rank. cost: what the rows cost, or null.
  void add_step(int rank, int writer, const Placement& now, LoadRecorder& recorder, Phase phase,
                const CostModel* cost = nullptr);

  // Where the tokens of a writer's rank go; null: they are not wanted.
  TokenRecorder* tokens(int writer) {
    return token_recorders_.empty() ? nullptr : &token_recorders_[writer];
  }

  // Brings the rows of all ranks together, after the last step, on rank 0 of processes
  // (collective), or, without comm, from the writers of this process.
  void merge(Communicator* comm);

  // The rest is valid after merge(), where the results are.
  int64_t steps() const { return steps_; }
  int num_layers() const { return layers_; }
  int num_experts() const { return experts_; }
  // [layers][ranks] and [layers, experts], summed over the steps.
  const std::vector<std::vector<int64_t>>& rank_rows() const { return rank_rows_; }
  const std::vector<int64_t>& expert_rows() const { return expert_rows_; }
  // [layers][ranks] picoseconds by the cost, summed over the steps; all 0 without one.
  const std::vector<std::vector<int64_t>>& rank_times() const { return rank_times_; }
  // [steps] what each was for. Needs StepWants::expert_rows.
  const std::vector<Phase>& phases() const { return writers_[0].phases; }
  // The sample of the tokens; none where it was not asked for. The rank that a token comes from is
  // known where each rank has sequences of its own.
  const std::optional<TokenSample>& token_sample() const { return token_sample_; }
  // PAR of the summed rows of each third of the steps, mean over the layers; empty for less than
  // three steps. Needs StepWants::rank_rows.
  std::vector<double> par_by_third();
  // PAR of a step in time, mean over the steps of each third and the layers; empty for less than
  // three steps. Needs StepWants::rank_times.
  std::vector<double> par_time_by_third();
  RankLoads rank_loads();
  // Calls back for one block of steps after the other: [steps, layers, experts]. Needs
  // StepWants::expert_rows.
  void each_block(const std::function<void(std::span<const int32_t> rows)>& take);

 private:
  // What one rank adds up.
  struct OfRank {
    std::vector<int64_t> rank_rows;    // [layers]
    std::vector<int64_t> rank_times;   // [layers]
    std::vector<int64_t> expert_rows;  // [layers, experts]
    std::vector<int32_t> of_layers;    // scratch: [layers] of the step
    std::vector<int32_t> times;        // scratch: [layers, 2] of the step, each in two halves
    std::vector<int32_t> of_experts;   // scratch: [layers, experts] of the step
    std::vector<Phase> phases;         // [steps], the same on every rank
    int64_t steps = 0;
  };
  // Calls back for one step after the other: [the log's row].
  void each_step(StepLog& log,
                 const std::function<void(int64_t step, std::span<const int32_t> values)>& take);
  void merge_sums(Communicator* comm);
  void merge_tokens_of_ranks(Communicator* comm);
  void merge_log(Communicator* comm, StepLog& from, StepLog& to, bool sums);

  int layers_, experts_, ranks_;
  std::vector<OfRank> writers_;
  std::optional<ParallelLayout> layout_;
  std::vector<TokenRecorder> token_recorders_;  // by writer
  std::optional<TokenSample> token_sample_;
  std::optional<StepLog> rank_log_, time_log_, expert_log_;  // by writer
  // One writer: [layers, ranks], [layers, 2, ranks], and the sum.
  std::optional<StepLog> all_rank_log_, all_time_log_, all_expert_log_;
  int64_t steps_ = 0;
  std::vector<std::vector<int64_t>> rank_rows_, rank_times_;
  std::vector<int64_t> expert_rows_;
};

}  // namespace trimtab::cli
