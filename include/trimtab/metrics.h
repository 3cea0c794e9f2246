// SPDX-License-Identifier: Apache-2.0
// What live balancing shows of itself: events for logs and reports, and metrics for Prometheus.
// Plain data, filled by the Balancer; nothing here has state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trimtab {

// Gain, here and below: PAR before - PAR after, mean over the layers that change; 0.1 means that a
// rank at the mean waits for a tenth of its expert time less.
struct BalanceEvent {
  enum class Kind {
    kPlanned,     // a plan is there and worth its moves; migration begins
    kRejected,    // a plan whose gain does not repay its moves; nothing changes
    kFailed,      // the planner threw or returned an invalid plan
    kLate,        // the planner passed its deadline
    kSwitched,    // a layer has its new placement on all ranks
    kRolledBack,  // a layer keeps its old placement on all ranks
    kSpeeds,      // ranks are faster or slower than was thought; the text says how fast
    kLeftOut,     // layers of a plan need more spares than a rank has; they stay as they are
    kCommitted,   // all layers of the plan are switched or rolled back
  };

  int64_t step = 0;  // the step at which it took effect
  Kind kind = Kind::kPlanned;
  int layer = -1;         // MoE layer; -1: the whole plan
  int64_t moves = 0;      // moves of this layer or plan
  int64_t bytes = 0;      // bytes sent between ranks for these moves
  double seconds = 0;     // time that planning or moving took
  double predicted = 0;   // gain on the window that the plan was made from
  double realised = 0;    // gain on the steps after the switch; 0 until these are measured
  std::string text = {};  // the reason, for people; may be empty

  bool operator==(const BalanceEvent&) const = default;
};

// "planned", "rejected", "failed", "late", "switched", "rolled back", "speeds",
// "left out", "committed"
std::string_view name(BalanceEvent::Kind kind);
// One line for people: "switched, MoE layer 3, 12 moves", and the reason behind a colon.
std::string describe(const BalanceEvent& event);

// The metrics of one run so far. Totals only grow; the other values describe the last window or the
// last plan.
struct BalanceMetrics {
  std::string split = {};   // the rule that shares tokens out over replicas, by name
  std::string policy = {};  // the policy that plans, by name
  // PAR of the last window, mean over the layers. In rows: of what the ranks got in all its steps
  // together.
  double par_rows = 1;
  // In time, by the cost model: of what the ranks took in a step for the rows they got, mean over
  // the steps, or over one step of each part where the parts are several. None without a model.
  std::optional<double> par_time = std::nullopt;
  // [ranks] how fast each is, in thousandths of the fastest, where that was measured; empty: all
  // are taken to be equally fast.
  std::vector<int32_t> rank_speeds = {};
  // 1 / PAR of the last window's rank loads: mean and least over the layers. 1 is level.
  double balancedness_mean = 1;
  double balancedness_min = 1;
  int64_t rebalances = 0;     // plans of which at least one layer was switched
  double plan_seconds = 0;    // time that planners took
  double stall_seconds = 0;   // time that steps waited for balancing
  int64_t moves = 0;          // moves of layers that were switched
  int64_t moved_bytes = 0;    // bytes sent between ranks, also for layers that were rolled back
  double predicted_gain = 0;  // gain that the last applied plan promised
  double realised_gain = 0;   // measured gain of the last plan whose next window has come
  int64_t rolled_back_layers = 0;
  int64_t plans_failed = 0;
  int64_t plans_late = 0;
  int64_t plans_rejected = 0;
  // [ranks] The rows that each rank's experts got in all steps that were recorded, until the last
  // window was gathered. Balancer::finish() adds the steps since then.
  std::vector<int64_t> rank_tokens;
};

// Returns the metrics in the text exposition format of Prometheus, 0.0.4: names trimtab_..., each
// with HELP and TYPE. There are as many series as ranks, once more as many where speeds were
// measured, and 15 more, or 16 with a cost model; none per layer or expert.
std::string prometheus_text(const BalanceMetrics& metrics);
// Writes them to a new file that replaces path when complete, as the node exporter's textfile
// collector wants it: a path that ends in .prom, in its directory. Throws Error on I/O failure.
void write_metrics(const std::string& path, const BalanceMetrics& metrics);

}  // namespace trimtab
