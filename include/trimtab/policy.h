// SPDX-License-Identifier: Apache-2.0
// A Policy plans: it turns recorded loads and the current placement into a better placement. It is
// pure and deterministic: the same Problem gives the same Plan on every rank, compiler and thread
// count. All policies share one frame (limits, kept slots, moves, predictions, bounds), so that
// their plans can be compared.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/load.h"
#include "trimtab/node_rules.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"
#include "trimtab/topology.h"
#include "trimtab/traffic.h"

namespace trimtab {

// A placement to start from when there is none: experts 0..E-1 in slot order, then 0..E-1 again as
// replicas (what vLLM and its relatives load first). slots_per_rank: [ranks]. Throws
// InvalidArgument naming the smallest legal sizes when there are fewer slots than experts.
Placement default_placement(int num_layers, int num_experts, std::vector<int> slots_per_rank);

// The most that a plan may cost. A limit that is reached stops further moves; it never makes a plan
// invalid. What max_bytes and max_layers allow is spent where it gains most, over all layers, parts
// of a layer's plan included, and never on more moves than the plan has without them.
struct PlanLimits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t max_moves_per_layer = kNone;
  int64_t max_bytes = kNone;             // over all layers
  int64_t max_layers = kNone;            // layers that change
  int64_t max_receive_per_rank = kNone;  // experts one rank receives in one layer
};

// Earlier loads, condensed: what a policy wants to remember from one replanning to the next.
// Callers hand back what the last Plan returned. The weights of episodes are their steps, halved
// with age.
struct History {
  Load episodes;                // [episodes, layers, experts]
  std::vector<double> weights;  // [episodes], newest last
  int64_t steps_seen = 0;
};

// One planning task. The load's layers and experts are the placement's; slots per rank are those of
// `current`.
struct Problem {
  const Load& load;  // the recorded window
  const Placement& current;
  Topology topology = {};
  PlanLimits limits = {};
  // The bytes of one expert's weights in a layer; 0: they are not known (limits.max_bytes needs
  // them).
  int64_t expert_bytes = 0;
  int num_groups = 1;  // expert groups of the router (for `deepseek`, and rules.groups_on_nodes)
  // What every layer of the plan keeps to; `trim` honours all, `deepseek` groups_on_nodes. The
  // other policies throw InvalidArgument where there are rules and several nodes, and so does every
  // policy where limits allow no plan that keeps to them.
  NodeRules rules = {};
  // The history that the last plan returned; `load` then holds only the steps since.
  const History* history = nullptr;
  // The rule that will share tokens out over the replicas of the plan. None: each replica gets the
  // same part, fractions of tokens included.
  std::optional<SplitRule> split = std::nullopt;
  // What rows cost where the plan serves; kTime needs one, and it must outlive the call.
  const CostModel* cost = nullptr;
  // Fill Plan::curve, which takes a few times as long as the plan.
  bool wants_curve = false;
  // Single steps of the window, for the cost: what an expert takes depends on its rows in a step,
  // and not on their sum. Null: those of `load` are single steps.
  const Load* steps = nullptr;
  // Another thread sets it to end planning early: rebalance() then throws PlanningStopped, within
  // about 100 ms. Null: nobody will.
  const std::atomic<bool>* stop = nullptr;
  // Sampled tokens, for the traffic between ranks and nodes; null: it is not known. Where the
  // topology has several nodes or prices, it is predicted, and `trim` seeks, among plans whose peak
  // loads are at most wire_slack (a part, >= 0) above those of its best, the one whose copies cost
  // least, or without prices the one that sends least between nodes.
  const TokenSample* tokens = nullptr;
  double wire_slack = kWireSlack;
  static constexpr double kWireSlack = 0.003;

  bool has_wires() const {
    return tokens != nullptr && (topology.num_nodes() > 1 || topology.has_prices());
  }
};

// Planning was told to end by Problem::stop; there is no plan.
class PlanningStopped : public Error {
 public:
  PlanningStopped() : Error("planning was stopped before its end") {}
};

// Throws PlanningStopped when `stop` is set. Policies call it between layers and in long searches.
inline void check_stop(const std::atomic<bool>* stop) {
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw PlanningStopped();
}

// One expert's weights go to one slot. This is the one type for a change of a slot, from a policy's
// plan to the rank that sends or receives the weights. Slots are those of all ranks, as in
// Placement.
struct Move {
  int32_t layer = 0;
  int32_t slot = 0;
  int32_t expert = 0;      // the expert that the slot gets
  int32_t from_slot = -1;  // a slot that holds the expert now; -1: it is not decided yet
                           // (plan_moves() in migrator.h decides it)
  bool operator==(const Move&) const = default;
};

// Every PAR is of rank loads in tokens, shared out as Problem::split says.
struct LayerPrediction {
  double par_before = 1, par_after = 1;            // PAR of the loads summed over the window
  double par_step_before = 1, par_step_after = 1;  // mean over the steps of the step's PAR
  // Upper end of a 95 % interval of par_step_after, from the means of up to 16 runs of consecutive
  // steps (steps close in time resemble each other, so single steps would claim too much). Equal to
  // par_step_after below two steps.
  double par_step_after_high = 1;
  // Proved lower bounds of the window PAR. bound_equal: of every placement with these slots in
  // which no rank holds an expert twice; one that does may have a lower PAR. bound_exact: of every
  // placement with these slots, where tokens may be shared in any way among replicas.
  double bound_equal = 1;
  double bound_exact = 1;
  // With a cost model: mean PAR of a step in time, and the time that a step's busiest rank takes,
  // mean over the steps. The second says what a plan gains; the PAR also falls where replicas add
  // work to the other ranks.
  double par_time_before = 0, par_time_after = 0;
  double step_seconds_before = 0, step_seconds_after = 0;
  // With sampled tokens and several nodes: the copies of a token that go between nodes, one for
  // each other node that it visits (Traffic::between_nodes()).
  double node_copies_before = 0, node_copies_after = 0;
  // With sampled tokens and prices: what the copies of a token cost, one copy for each rank that it
  // visits (Traffic::cost()).
  double copies_cost_before = 0, copies_cost_after = 0;
};

// What a plan with fewer moves would reach, or one with more.
struct CurvePoint {
  int64_t moves = 0;             // over all layers
  double par = 1, par_step = 1;  // LayerPrediction::par_after, par_step_after; mean over layers
  double step_seconds = 0;       // with a cost model: step_seconds_after, mean over layers
};

struct Plan {
  Placement placement;
  // The moves in order of layer and slot. Weights that a rank holds already are no move.
  std::vector<Move> moves;
  std::vector<int64_t> receive_peak;  // [layers] the most experts that one rank receives
  // [layers] the slots that hold an expert which a lower slot of their rank holds
  std::vector<int64_t> duplicates;
  std::vector<LayerPrediction> layers;  // [layers]
  int64_t bytes = 0;                    // moves x expert_bytes
  History history;  // for the next Problem; empty for policies that remember nothing
  // With Problem::wants_curve: PAR against moves, from none on, by ascending moves, each point more
  // level than the last. Limits on a layer and on the number of layers hold, max_bytes does not:
  // with so many moves as its limit, a plan is this point. It ends at the moves of the plan without
  // limits over all layers. At most about a hundred points.
  std::vector<CurvePoint> curve;

  // The mean of one prediction over the layers.
  double mean(double LayerPrediction::* value) const {
    double sum = 0;
    for (const LayerPrediction& layer : layers) sum += layer.*value;
    return sum / static_cast<double>(layers.size());
  }
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // Throws InvalidArgument when the problem is malformed (sizes, negative loads with layer, step
  // and expert named).
  virtual Plan rebalance(const Problem& problem) const = 0;
};

// Each of these options belongs to one policy. make_policy() refuses the options of other policies.
struct PolicyOptions {
  // trim: how hard it searches: fast, balanced or deep. Empty: balanced.
  std::string preset;
  // trim: a soft limit on the time of a plan, at the price of determinism across machines.
  std::optional<double> time_budget_s;
  // trim: PAR (mean over steps) that one move in a layer must gain. 0: moves are free. Unset:
  // trim's own, next to nothing for a first plan, more once the current placement is good or a
  // history shows how long gains last.
  std::optional<double> move_price;
  // deepseek: an expert that stays on its rank stays in its slot.
  bool keep_slots = true;
  // random: other seeds give other placements.
  uint64_t seed = 0;
};

// static, round_robin, random, deepseek, swift, flashlb, trim, optimal. Throws InvalidArgument for
// any other name, with the names, and for an option that the policy does not have, with the policy
// that has it.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});
// Several policies, of which each gets the options that it has. Throws InvalidArgument as
// make_policy(), and for an option that none of them has.
std::vector<std::unique_ptr<Policy>> make_policies(std::span<const std::string> names,
                                                   const PolicyOptions& options = {});
std::span<const std::string_view> policy_names();

}  // namespace trimtab
