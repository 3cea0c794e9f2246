// SPDX-License-Identifier: Apache-2.0
// What goes along with the steps of one rank of `trimtab run`: it records what the rank's experts
// got, and balances where --eplb asks for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/model/step_work.h"
#include "cli/run/eplb_setup.h"
#include "cli/run/run_recorder.h"
#include "trimtab/balancer.h"
#include "trimtab/generate.h"

namespace trimtab::cli {

class RunObserver final : public StepObserver {
 public:
  // Null: nothing is recorded. As in Balancer::Parts.
  struct Watchers {
    TraceBuffer *trace = nullptr, *step_trace = nullptr;
    // Counts what decode steps read; null: nobody does. It is the observer's own.
    std::unique_ptr<bench::StepWork> work = nullptr;
  };
  // records: false for runs that are no load. slots: null unless something may move. decoder: made
  // with eplb.start and those slots. expert_bytes: what a move takes where there are no slots.
  // recorder, writer: where the rows go; see RunRecorder::add_step().
  RunObserver(const EplbSetup& eplb, bool records, Decoder& decoder, ExpertSlots* slots,
              size_t expert_bytes, RunRecorder& recorder, int writer, Watchers watchers);

  uint64_t status() override { return balancer_ ? balancer_->status() : 0; }
  LoadRecorder* before_step(const Step& step) override;
  TokenRecorder* tokens() override { return run_recorder_.tokens(writer_); }
  void after_step() override;

  // The placement that is in force now.
  const Placement& placement() const { return balancer_ ? balancer_->placement() : start_; }
  // Bytes of weights, keys and values that this rank read in decode steps; 0 where nobody counts.
  double decode_bytes() const { return decode_bytes_; }
  const Balancer* balancer() const { return balancer_ ? &*balancer_ : nullptr; }
  // Writes the metrics of the balancing, if they have changed since the last time.
  void write_metrics(const std::string& file);
  // Ends the balancing, so that placement() and the metrics are those at the end. Every rank calls
  // it after its last step, and close() once nobody asks for the balancer any more.
  void finish();
  void close() { balancer_.reset(); }

 private:
  const Placement start_;
  const int rank_, writer_;
  const bool records_;
  std::shared_ptr<const CostModel> cost_;  // what the layers share out by; null: rows
  RunRecorder& run_recorder_;
  LoadRecorder recorder_;  // used where there is no balancer
  const std::unique_ptr<bench::StepWork> work_;
  Phase phase_ = Phase::kDecode;            // of the open step
  std::vector<bench::WorkOfChunk> chunks_;  // of it, where they are counted
  double decode_bytes_ = 0;
  std::optional<Balancer> balancer_;
  std::pair<int64_t, int64_t> metrics_written_ = {0, -1};  // events and tokens of the last file
};

}  // namespace trimtab::cli
