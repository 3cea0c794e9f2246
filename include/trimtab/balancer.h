// SPDX-License-Identifier: Apache-2.0
// Keeps ranks level while they serve. A Balancer, one per rank, records the load of each step,
// sends it to rank 0 every window, has a plan made there in a background thread, moves experts
// between ranks under the steps that follow, and switches layer by layer, each on all ranks between
// the same two steps. Nothing waits for it (use_async): a plan that is late, fails or does not pay
// leaves things as they are, and a layer whose experts do not arrive as they were sent keeps its
// old ones.
//
//   Balancer balancer(config, parts, comm);
//   for (;;) {
//     balancer.before_step(phase);                                 // layers may switch here
//     for (l ...) run(layers[l].forward(x, y, lane, {.local_counts =
//     balancer.recorder().counts(l)})); balancer.after_step();
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/load.h"
#include "trimtab/metrics.h"
#include "trimtab/migrator.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"
#include "trimtab/split.h"
#include "trimtab/trace.h"

namespace trimtab {

struct BalancerConfig {
  // Make plans and judge each on the window after it, but change nothing.
  bool screen = false;

  int64_t interval = 256;                     // steps of a window
  int64_t warmup_steps = 0;                   // first steps that are not recorded
  std::optional<Phase> phase = std::nullopt;  // whose steps count; not given: all
  // A window is sent and planned on in at most so many parts of consecutive steps.
  int64_t max_episodes = 64;

  // Windows whose PAR is above what chance alone leaves (noise_floor()) by no more than this less 1
  // are not planned on. 0: all are.
  double plan_above_par = 1.02;
  std::string policy = "trim";
  PolicyOptions policy_options = {};
  PlanLimits limits = {};
  // False: what was begun under one step, plan or migration, is waited for before the next one.
  // Steps take longer, but the same run then switches the same layers at the same steps (with no
  // gate, which measures time).
  bool use_async = true;
  // A plan that is not there by then is dropped. Seconds are rank 0's. 0: no such limit.
  double plan_deadline_seconds = 30;
  int64_t plan_deadline_steps = 0;

  // How the layers share tokens out over replicas, and so how the gain of a plan is reckoned.
  SplitRule split = SplitRule::kSplit;
  // A plan is applied if the time that it saves in so many windows is more than what its moves
  // take. The time that it saves is that part of a step's which grows with the rows of the busiest
  // rank.
  bool gate = true;
  double expected_life_windows = 8;
  double expert_share = 0.5;
  double screen_gain = 0.01;  // that a plan must surely have on unseen steps to be recommended

  int64_t steps_per_layer =
      1;  // a layer begins to move at the earliest so many steps after the one before
  int spares =
      0;  // experts that a rank can receive in one layer; 0: as many as it has slots, at most 8
};

// From a JSON object with the names above (phase: "all", "prefill", "decode"; split: "static",
// "round_robin", "split"; of policy_options policy_preset, move_price, time_budget_seconds, seed;
// of limits max_moves_per_layer, max_bytes, max_layers) and `preset`: "default", "short" (runs of a
// few hundred steps) or "steady" (rare, thorough plans), which the other keys change. file names it
// in errors. Throws FormatError for what is not such an object, InvalidArgument for unknown keys,
// with the nearest name, and impossible values.
BalancerConfig parse_balancer_config(std::string_view json, const std::string& file);
// The spares that a rank's ExpertSlots should have: config.spares, or what 0 stands for.
int num_spares(const BalancerConfig& config, const Placement& placement);
// Throws InvalidArgument with the name and the value of what is impossible.
void check_balancer_config(const BalancerConfig& config);

class Balancer {
 public:
  // Gives a layer its experts and replicas from now on: MoeLayer::replace(). Called in
  // before_step(), on every rank in the same one.
  using Place = std::function<void(int layer, std::shared_ptr<const Experts>,
                                   std::shared_ptr<const SplitTable>)>;

  struct Parts {
    Placement placement;     // what the layers begin with
    Topology topology = {};  // which ranks share a node
    std::shared_ptr<const Policy> policy =
        nullptr;  // null: as configured. Used by rank 0 alone, in the background
    // Of this rank; outlives the Balancer. Null where nothing is to move: config.screen.
    ExpertSlots* slots = nullptr;
    Format format = Format::kStandard;  // of the experts that `place` gets: the dispatcher's
    int64_t expert_bytes = 0;           // that one expert's move would take; for config.screen
    Place place = {};
    MigratorOptions migration = {};
    TraceBuffer* trace = nullptr;       // of the thread in the background: plans and migrations
    TraceBuffer* step_trace = nullptr;  // of the thread that runs the steps: switches
    // Called for each event, in before_step(), on every rank. What only rank 0 knows (gains,
    // seconds of a plan, why it was rejected) is 0 or empty on the others.
    std::function<void(const BalanceEvent&)> log = {};
  };

  // What a plan that was not applied would have done.
  enum class Verdict { kNotEnoughEvidence, kRecommended, kNotRecommended };

  // Collective; comm must outlive the Balancer and stays free for the caller, who may use it at the
  // same time. Throws InvalidArgument for what does not fit, before a peer hears of it.
  Balancer(const BalancerConfig& config, Parts parts, Communicator& comm);
  // Finishes what is under way in the background, which peers take part in, so all ranks must end
  // after the same step. Only a planner that does not come back is left behind.
  ~Balancer();
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;

  // Around every step, on every rank; phase must be the same on all. Throws CommError when a peer
  // fails.
  void before_step(Phase phase);
  // counts: false for steps that are no load (warm-up, profile, forced balance).
  void after_step(bool counts = true);
  LoadRecorder& recorder();  // a step is open between the two

  // The same for callers that tell all ranks something before each step anyway: word() goes along,
  // and all ranks' words come to before_step(). Use one or the other. Without use_async, word()
  // waits.
  uint64_t word();
  void before_step(Phase phase, std::span<const uint64_t> words);

  const Placement& placement() const;
  // All of rank 0; the others know what they take part in.
  const BalanceMetrics& metrics() const;
  std::span<const BalanceEvent> events() const;  // the latest, 512 at least if there were so many
  int64_t layers_switched() const;
  // Of the screened plans together, on rank 0.
  Verdict verdict() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string_view name(
    Balancer::Verdict verdict);  // "not enough evidence", "recommended", "not recommended"

}  // namespace trimtab
