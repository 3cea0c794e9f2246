// SPDX-License-Identifier: Apache-2.0
// From a window of loads to a plan that is worth its moves, or the reason why there is none. The
// gates are in live/gate.h. A task owns all that planning needs, so that a planner may go on where
// nobody waits for it any more.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "live/gate.h"
#include "live/window.h"
#include "trimtab/balancer.h"

namespace trimtab {

struct PlanTask {
  BalancerConfig config;
  std::shared_ptr<const Policy> policy;
  std::shared_ptr<const CostModel> cost = nullptr;  // null: rows
  Window window;
  Placement current;
  Topology topology;
  std::shared_ptr<const History> history;  // what the last plan returned; null: nothing yet
  int64_t expert_bytes = 0;
  int max_receive = 0;  // experts that a rank can receive in one layer
  Costs costs;
};

struct PlanResult {
  enum class Kind {
    kNothing,   // no tokens, or level enough, or the policy moves nothing
    kRejected,  // the moves cost more than the gain
    kFailed,    // the policy threw or its plan is invalid
    kPlan
  };
  Kind kind = Kind::kNothing;
  std::string why;
  std::vector<int32_t> logical;  // [layers, slots] of the plan; kPlan and kRejected
  int64_t moves = 0, bytes = 0;
  double predicted = 0;               // gain, mean over the layers that change
  std::vector<std::string> left_out;  // why layers of the plan stay as they are
  double seconds = 0;
  std::shared_ptr<const History> history;  // for the next task
};

PlanResult make_plan(const PlanTask& task);

// How the layers share tokens out, as plans are made and measured. Where a row costs the
// same whatever it meets, times are rows, and the rule kTime is kSplit.
Serving serving_of(const BalancerConfig& config, const Topology& topology, const CostModel* cost);

}  // namespace trimtab
