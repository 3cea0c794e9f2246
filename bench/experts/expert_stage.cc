// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/expert_stage.h"

#include <utility>
#include <vector>

#include "bench/machine/stopwatch.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

std::unique_ptr<Dispatcher> make_stage_dispatcher(const ModelShape& model, DType rows,
                                                  int64_t max_tokens) {
  const std::vector<int32_t> first_slots = {0, model.experts};
  return make_pull_dispatcher({.max_tokens = max_tokens,
                               .hidden = static_cast<int>(model.hidden),
                               .top_k = model.top_k,
                               .dtype = rows,
                               .first_slots = first_slots},
                              0);
}

}  // namespace

std::unique_ptr<Experts> make_experts(const ModelShape& model, const WeightDType& dtype,
                                      const ExpertSet& set) {
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (int s = 0; s < model.experts; ++s) slots.push_back(set.mlp(s % set.size()));
  return make_grouped_experts(std::move(slots), model.hidden, dtype.weights);
}

ExpertStage::ExpertStage(const ModelShape& model, std::unique_ptr<Experts> experts,
                         int64_t max_tokens, Communicator& comm, Team& team)
    : top_k_(model.top_k),
      experts_(std::move(experts)),
      dispatcher_(make_stage_dispatcher(model, experts_->dtype(), max_tokens)),
      workspace_(dispatcher_->workspace_bytes()),
      y_(cells(max_tokens, model.top_k, model.hidden) * sizeof(float)),
      scratch_(experts_->scratch_bytes(max_tokens * model.top_k)),
      lane_{comm, workspace_, team} {}

void ExpertStage::run(ConstRows x, const Picks& picks, Rows out) {
  workspace_.release(0);  // the last exchange is gone
  const Stopwatch watch(lane_.team);
  const Request request{.x = x, .ids = picks.ids, .weights = picks.weights, .top_k = top_k_};
  const ExchangePtr exchange = dispatcher_->dispatch(request, lane_);
  exchange->wait(Stage::kArrived);
  const double sorted = watch.seconds();
  const Tokens& tokens = exchange->tokens();
  const Rows y(y_.as<float>(), tokens.x.rows, tokens.x.cols);
  experts_->run(tokens, y, {scratch_.data(), scratch_.bytes()}, lane_.team);
  const double computed = watch.seconds();
  exchange->send_back(y, experts_->left());
  exchange->wait(Stage::kReturned);
  exchange->finish(out);
  exchange->wait(Stage::kDrained);
  moving_share_ = 1 - (computed - sorted) / watch.seconds();
}

}  // namespace trimtab::bench
