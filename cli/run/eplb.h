// SPDX-License-Identifier: Apache-2.0
// `trimtab run --eplb`: the placement that a run begins with, and what each rank does about it
// while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/eplb_result.h"
#include "trimtab/balancer.h"
#include "trimtab/generate.h"

namespace trimtab::cli {

enum class EplbMode { kOff, kStatic, kRecord, kDynamic, kScreen };
std::string_view name(EplbMode mode);

struct Eplb {
  EplbMode mode = EplbMode::kOff;
  std::string file;  // of kRecord what to write, of others the map to begin with; may be empty
  BalancerConfig config;
  Placement start;
  bool begins_with_file() const { return mode != EplbMode::kRecord && !file.empty(); }
  bool balances() const { return mode == EplbMode::kDynamic || mode == EplbMode::kScreen; }
  // Which replica a pick goes to, with this dispatcher or "auto".
  SplitRule split = SplitRule::kStatic;
};

// Throws InvalidArgument for an unknown mode, with the nearest, a map that is not of this model and
// these ranks, and impossible numbers; FormatError for files.
Eplb read_eplb(const EplbOptions& options, const ModelConfig& model, int ranks,
               const std::string& dispatcher);

// Writes what kRecord asks for: the loads to the file, in the format of its name, and the map they
// were recorded under beside it, as NAME.placement.json.
void write_record(const Eplb& eplb, const Load& load, const ModelConfig& model);
// Writes a map of this model's layers, as JSON, for static:, dynamic: and screen:.
void write_map(const std::string& file, const Placement& placement, const ModelConfig& model);

// The sum of what the ranks have: counts_of_rank[r] is [steps, layers, experts].
Load sum_of_ranks(const Placement& placement, int64_t steps,
                  std::span<const std::span<const int32_t>> counts_of_rank);

// One rank of a run: records what its experts got, and balances.
class EplbRank final : public StepObserver {
 public:
  // Null: nothing is recorded. As in Balancer::Parts.
  struct Watchers {
    TraceBuffer *trace = nullptr, *step_trace = nullptr;
  };
  // slots: null unless something may move. decoder: made with eplb.start and those slots.
  // expert_bytes: what a move takes where there are no slots.
  EplbRank(const Eplb& eplb, Decoder& decoder, ExpertSlots* slots, size_t expert_bytes,
           int64_t max_steps, Watchers watchers);

  uint64_t status() override { return balancer_ ? balancer_->status() : 0; }
  LoadRecorder* before_step(const Step& step) override;
  void after_step() override;

  int64_t steps() const { return steps_; }
  // [steps, layers, logical experts] rows that this rank's slots got, whatever they held.
  std::span<const int32_t> counts() const;
  const Placement& placement() const { return balancer_ ? balancer_->placement() : start_; }  // now
  const Balancer* balancer() const { return balancer_ ? &*balancer_ : nullptr; }
  // When something has changed since the last time.
  void write_metrics(const std::string& file);
  // After the last step, on every rank: ends the balancing.
  void finish();

 private:
  const Placement start_;
  const int rank_;
  LoadRecorder recorder_;  // without a balancer
  std::optional<Balancer> balancer_;
  int64_t steps_ = 0;
  std::vector<int32_t> counts_;
  std::pair<size_t, int64_t> metrics_written_ = {0, -1};  // events and tokens of what the file says
};

}  // namespace trimtab::cli
