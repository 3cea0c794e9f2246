// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_observer.h"

#include <iterator>
#include <numeric>

namespace trimtab::cli {

RunObserver::RunObserver(const EplbSetup& eplb, bool records, Decoder& decoder, ExpertSlots* slots,
                         size_t expert_bytes, RunRecorder& recorder, int writer, Watchers watchers)
    : start_(eplb.start),
      rank_(decoder.comm().rank()),
      writer_(writer),
      records_(records),
      cost_(decoder.cost()),
      run_recorder_(recorder),
      recorder_(start_.num_layers(), start_.slots_of_rank(rank_), 0),
      work_(std::move(watchers.work)) {
  if (!eplb.mode.balances()) return;
  const auto hosts = decoder.comm().hosts();
  Balancer::Parts parts = {.placement = start_,
                           .topology = {.node_of_rank = {hosts.begin(), hosts.end()}},
                           .cost = decoder.cost(),
                           .slots = slots,
                           .format = decoder.format(),
                           .expert_bytes = static_cast<int64_t>(expert_bytes),
                           .place =
                               [&decoder](int layer, std::shared_ptr<const Experts> experts,
                                          std::shared_ptr<const SplitTable> replicas) {
                                 decoder.replace_layer(layer, std::move(experts),
                                                       std::move(replicas));
                               },
                           .replace_cost =
                               [this, &decoder](const std::shared_ptr<const CostModel>& cost) {
                                 decoder.replace_cost(cost);
                                 cost_ = cost;
                               },
                           .trace = watchers.trace,
                           .step_trace = watchers.step_trace};
  balancer_.emplace(eplb.config, std::move(parts), decoder.comm());
}

LoadRecorder* RunObserver::before_step(const Step& step) {
  if (!records_) return nullptr;
  phase_ = step.phase;
  if (work_) chunks_ = bench::work_of(step.batch);
  if (balancer_) {
    balancer_->before_step(step.phase, step.statuses);
    return &balancer_->recorder();
  }
  recorder_.begin_step(step.phase);
  return &recorder_;
}

void RunObserver::after_step() {
  if (!records_) return;
  LoadRecorder& recorder = balancer_ ? balancer_->recorder() : recorder_;
  run_recorder_.add_step(rank_, writer_, placement(), recorder, phase_, cost_.get());
  if (work_ && phase_ == Phase::kDecode) {
    // A rank without sequences still has experts that others' tokens pick.
    work_->clear();
    work_->add(chunks_);
    for (int layer = 0; layer < recorder.num_layers(); ++layer)
      work_->add_experts(recorder.counts(layer));
    decode_bytes_ += work_->bytes();
  }
  balancer_ ? balancer_->after_step() : recorder_.keep_step();
}

void RunObserver::finish() {
  if (balancer_) balancer_->finish();
}

void RunObserver::write_metrics(const std::string& file) {
  // They change with what happens, and with each window that is gathered.
  const BalanceMetrics& metrics = balancer_->metrics();
  const std::pair<int64_t, int64_t> now = {
      std::ssize(balancer_->events()),
      std::accumulate(metrics.rank_tokens.begin(), metrics.rank_tokens.end(), int64_t{0})};
  if (now == metrics_written_) return;
  trimtab::write_metrics(file, metrics);
  metrics_written_ = now;
}

}  // namespace trimtab::cli
