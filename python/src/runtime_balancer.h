// SPDX-License-Identifier: Apache-2.0
// Live balancing of a MoeRuntime: a Balancer on each of its ranks. The ranks share one copy of the
// weights, so a move copies nothing; outputs do not change. Any thread may call, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moe_runtime.h"
#include "trimtab/balancer.h"

namespace trimtab::python {

class RuntimeBalancer {
 public:
  // Balances all layers that the runtime has. They are placed anew here, with `redundant` slots of
  // each rank beside its share of the experts. config.split must be the runtime's. Throws
  // InvalidArgument.
  RuntimeBalancer(std::shared_ptr<MoeRuntime> runtime, const BalancerConfig& config, int redundant);
  ~RuntimeBalancer();
  RuntimeBalancer(const RuntimeBalancer&) = delete;
  RuntimeBalancer& operator=(const RuntimeBalancer&) = delete;

  // Between two steps: ends the one before, if there is one, and begins one of this phase. Layers
  // may take new places here. counts: was the step that ends load?
  void step(Phase phase, bool counts);
  // Ends the last step and the balancing, as Balancer::finish(). step() throws InvalidArgument
  // afterwards.
  void finish(bool counts);

  // The following are copies as of the last step().
  Placement placement() const;
  BalanceMetrics metrics() const;
  Balancer::Verdict verdict() const;
  // The events since the last call of this.
  std::vector<BalanceEvent> take_events();
  const std::shared_ptr<MoeRuntime>& runtime() const { return runtime_; }

 private:
  void make_balancers(const BalancerConfig& config, const Placement& placement);
  void check_process() const;
  void end_step(bool counts);
  void place_changed_layers();
  template <class Body>
  void on_all_ranks(const Body& body) const;

  const std::shared_ptr<MoeRuntime> runtime_;
  const int process_;  // that the balancers' threads are in

  mutable std::mutex mutex_;                          // guards all below
  std::vector<std::unique_ptr<Communicator>> ends_;   // [ranks]
  std::vector<std::unique_ptr<Balancer>> balancers_;  // [ranks]
  std::vector<std::vector<int64_t>> seen_;            // [layers][slots] rows before the open step
  std::vector<int> changed_;                          // layers whose places are new
  std::vector<BalanceEvent> events_;
  bool step_is_open_ = false;
};

}  // namespace trimtab::python
