// SPDX-License-Identifier: Apache-2.0
// Keeps ranks level while they serve. Each rank has one Balancer. It records the load of each step
// and sends it to rank 0 after every window of steps. There a background thread makes a plan. The
// experts then move between ranks in the background of the steps that follow, and each layer is
// switched to its new experts on all ranks between the same two steps. No step waits for any of
// this (use_async): a plan that is late, fails or does not pay changes nothing, and a layer whose
// experts do not arrive as they were sent keeps its old ones.
//
//   Balancer balancer(config, parts, comm);
//   while (there is work) {
//     balancer.before_step(phase);  // layers may switch here
//     for (l ...)
//       run(layers[l].forward(x, y, lane, {.local_counts = balancer.recorder().counts(l)}));
//     balancer.after_step();
//   }
//   balancer.finish();
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
#include "trimtab/cost_model.h"
#include "trimtab/load.h"
#include "trimtab/metrics.h"
#include "trimtab/migrator.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"
#include "trimtab/split.h"
#include "trimtab/trace.h"

namespace trimtab {

struct BalancerConfig {
  // Plans are made and each is measured on the window after it, but nothing is changed.
  bool screen = false;

  int64_t interval = 256;                     // steps of a window
  int64_t warmup_steps = 0;                   // the first steps, which are not recorded
  std::optional<Phase> phase = std::nullopt;  // steps of this phase count; not given: all steps
  // The steps of a window are summed up in at most this many parts of consecutive steps; the
  // planner sees the parts.
  int64_t max_episodes = 64;

  // Chance alone leaves some PAR above 1 (noise_floor()). A window whose PAR is above that by no
  // more than this value less 1, or by no more than chance may well leave, is not planned on
  // (is_worth_planning()). 0: every window is.
  double plan_above_par = 1.02;
  std::string policy = "trim";
  PolicyOptions policy_options = {};
  PlanLimits limits = {};
  // False: before each step the balancer waits for the plan or the migration that has begun. Steps
  // take longer, but the same run then switches the same layers at the same steps (without the
  // gate, which measures time).
  bool use_async = true;
  // A plan that takes longer than this is dropped. Rank 0 measures the seconds. 0: no such limit.
  double plan_deadline_seconds = 30;
  int64_t plan_deadline_steps = 0;

  // How the layers share tokens out over replicas: plans are made for it, and measured with it.
  SplitRule split = SplitRule::kSplit;
  // With the gate a plan changes only the layers in which it saves more time than their moves take,
  // while it lives. How many windows that is, is learned from the gains that plans realise; the
  // first ones are expected to bring what they promise for expected_life_windows. The time saved in
  // a step follows from Parts::cost; without it, expert_share says which part of a step grows with
  // the rows of the busiest rank.
  bool gate = true;
  double expected_life_windows = 8;
  double expert_share = 0.5;
  // With Parts::cost and Parts::replace_cost: how fast each rank is, is learned from what its
  // experts take in windows of steps, so a slow or throttled machine gets less to do. Plans then
  // depend on times. Not where the cost is given with speeds, or is rows.
  bool measure_speeds = true;
  // The gain that screened plans must have on unseen steps, with 95 % certainty, to be recommended.
  double screen_gain = 0.01;

  // Layers that move at a time, as far as spares allow, which bound the bytes of a step. They are
  // switched between the same two steps.
  int64_t layers_in_flight = 8;
  // Layers begin to move this many steps after those before, or later.
  int64_t steps_per_layer = 1;
  // The experts that a rank can receive at a time: those of one layer, or of all that move
  // together. 0: as many as it has slots, at most 8.
  int spares = 0;
};

// Reads a JSON object with the names above (phase: "all", "prefill", "decode"; split: "static",
// "round_robin", "split", "time"; of policy_options policy_preset, move_price, time_budget_seconds,
// seed; of limits max_moves_per_layer, max_bytes, max_layers) and `preset`: "default", "short"
// (runs of a few hundred steps) or "steady" (rare, thorough plans), which the other keys change.
// file is the name that errors give. has_cost: is there a cost model? Then `split` is kTime where
// the text names none. Throws FormatError for text that is not such an object, and InvalidArgument
// for unknown keys, with the nearest name, and for impossible values.
BalancerConfig parse_balancer_config(std::string_view json, const std::string& file,
                                     bool has_cost = false);
// The spares that each rank's ExpertSlots should have: config.spares, or the number that 0 stands
// for.
int num_spares(const BalancerConfig& config, const Placement& placement);
// Throws InvalidArgument with the name and the value of what is impossible.
void check_balancer_config(const BalancerConfig& config);

class Balancer {
 public:
  // Gives a layer other experts and replicas: MoeLayer::replace(). Called in before_step(), on all
  // ranks before the same step. No experts with Parts::shares_weights.
  using Place = std::function<void(int layer, std::shared_ptr<const Experts>,
                                   std::shared_ptr<const SplitTable>)>;

  struct Parts {
    Placement placement;     // the placement that the layers begin with
    Topology topology = {};  // which ranks share a node
    // Null: the policy that the configuration names. Only rank 0 uses it, in the background.
    std::shared_ptr<const Policy> policy = nullptr;
    // What the layers share out by, the same on all ranks: plans and gate are in time then. Null:
    // rows.
    std::shared_ptr<const CostModel> cost = nullptr;
    // This rank's slots, which must outlive the Balancer. Null where no weights move:
    // config.screen, shares_weights.
    ExpertSlots* slots = nullptr;
    // The ranks read the same weights, as threads of a process can. Moves copy nothing then.
    bool shares_weights = false;
    // The row format of the experts that `place` gets: the dispatcher's.
    Format format = Format::kStandard;
    int64_t expert_bytes =
        0;  // for config.screen: the bytes that the move of one expert would take
    Place place = {};
    // Gives all layers another cost model: MoeLayer::replace_cost(). Called in before_step(), on
    // all ranks before the same step. Null: speeds of ranks are not measured.
    std::function<void(const std::shared_ptr<const CostModel>&)> replace_cost = {};
    MigratorOptions migration = {};
    TraceBuffer* trace = nullptr;       // gets plans and migrations, from the background thread
    TraceBuffer* step_trace = nullptr;  // gets switches, from the thread that runs the steps
    // Called for each event, in before_step(), on every rank. Only rank 0 knows gains, the seconds
    // of a plan and why it was rejected; on the others they are 0 or empty.
    std::function<void(const BalanceEvent&)> log = {};
  };

  // Would plans have paid that were screened and not applied?
  enum class Verdict { kNotEnoughEvidence, kRecommended, kNotRecommended };

  // Collective. comm must outlive the Balancer; the caller may go on using it. Throws
  // InvalidArgument for parts that do not fit each other, before a peer hears of it.
  Balancer(const BalancerConfig& config, Parts parts, Communicator& comm);
  // Waits for the job in the background, which peers take part in, so all ranks must end after the
  // same step. Only a planner that does not return within a second is left behind. Without finish()
  // nobody counts the steps after the last window.
  ~Balancer();
  Balancer(const Balancer&) = delete;
  Balancer& operator=(const Balancer&) = delete;

  // Every rank calls these two around every step; phase must be the same on all ranks. Throws
  // CommError when a peer fails.
  void before_step(Phase phase);
  // counts: false for steps that are no load (warm-up, profile, forced balance).
  void after_step(bool counts = true);
  LoadRecorder& recorder();  // a step is open between before_step() and after_step()
  // Ends the balancing. Collective: every rank may call it once after the same step, its last one.
  // The background ends as follows, on all ranks alike: a window that is on its way to rank 0 is
  // measured; a plan that is being made is dropped; of a plan that is being carried out the layers
  // that are on their way are switched, or rolled back, and no other begins. Then rank 0 hears how
  // many rows each rank has had, so that BalanceMetrics::rank_tokens counts every step that was
  // recorded. before_step() throws InvalidArgument afterwards. Throws CommError when a peer fails.
  void finish();

  // For callers that tell all ranks something before each step anyway: they send status() along
  // and hand all ranks' statuses, [ranks], to before_step(). Then no message of the balancer's own
  // is needed. Use this or before_step(phase), not both. Without use_async, status() waits for the
  // job in the background.
  uint64_t status();
  void before_step(Phase phase, std::span<const uint64_t> statuses);

  const Placement& placement() const;
  // What the layers share out by now: Parts::cost, with the speeds that were measured. Null: rows.
  const std::shared_ptr<const CostModel>& cost() const;
  // Complete on rank 0; the other ranks count only what they take part in.
  const BalanceMetrics& metrics() const;
  // The latest events: all of them, or at least 512.
  std::span<const BalanceEvent> events() const;
  int64_t layers_switched() const;
  // The verdict on all screened plans together, on rank 0.
  Verdict verdict() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "not enough evidence", "recommended", "not recommended"
std::string_view name(Balancer::Verdict verdict);

}  // namespace trimtab
