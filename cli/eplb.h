// SPDX-License-Identifier: Apache-2.0
// `trimtab run --eplb`: the placement that a run begins with, and what each rank does about it while it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trimtab/balancer.h"
#include "trimtab/decoder.h"

namespace trimtab::cli {

struct EplbOptions {
  std::string mode = "off";    // off, static:FILE, record:FILE, dynamic, screen
  std::string config;          // file of a BalancerConfig; empty: the preset "short"
  int redundant_experts = -1;  // over all ranks; below 0: one a rank where something can come of it, else none
};

enum class EplbMode { kOff, kStatic, kRecord, kDynamic, kScreen };

struct Eplb {
  EplbMode mode = EplbMode::kOff;
  std::string file;  // of kStatic and kRecord
  BalancerConfig config;
  Placement start;
  bool balances() const { return mode == EplbMode::kDynamic || mode == EplbMode::kScreen; }
  // Which replica a pick goes to, with this dispatcher or "auto".
  SplitRule split = SplitRule::kStatic;
};

// Throws InvalidArgument for an unknown mode, with the nearest, a map that is not of this model and these ranks, and
// impossible numbers; FormatError for files.
Eplb read_eplb(const EplbOptions& options, const ModelConfig& model, int ranks, const std::string& dispatcher);

// Writes what kRecord asks for: the loads to the file, in the format of its name, and the map they were recorded under
// beside it, as NAME.placement.json.
void write_record(const Eplb& eplb, const Load& load, const ModelConfig& model);

// What the balancing of a run came to.
struct EplbResult {
  std::string mode;
  int64_t replans = 0, layers_switched = 0, moves = 0, moved_bytes = 0, rolled_back = 0;
  double stall_seconds = 0, plan_seconds = 0;
  std::vector<double> par_by_third;  // [3] of the rank loads of those steps together, mean over the layers
  double predicted_gain = 0, realised_gain = 0;
  std::string verdict;  // of screening; empty: none
};

// One rank of a run: records what its experts got, and balances.
class EplbRank final : public StepObserver {
 public:
  // slots: null unless something may move. decoder: made with eplb.start and those slots.
  EplbRank(const Eplb& eplb, Decoder& decoder, ExpertSlots* slots, int64_t max_steps,
           std::function<void(const BalanceEvent&)> log);

  uint64_t word() override { return balancer_ ? balancer_->word() : 0; }
  LoadRecorder* before_step(const Step& step) override;
  void after_step() override;

  int64_t steps() const { return steps_; }
  // [steps, layers, logical experts] rows that this rank's slots got, whatever they held.
  std::span<const int32_t> counts() const;
  const Placement& placement() const { return balancer_ ? balancer_->placement() : start_; }
  const Balancer* balancer() const { return balancer_ ? &*balancer_ : nullptr; }

 private:
  const Placement start_;
  const int rank_;
  LoadRecorder recorder_;  // without a balancer
  std::optional<Balancer> balancer_;
  int64_t steps_ = 0;
  std::vector<int32_t> counts_;
};

}  // namespace trimtab::cli
