// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/layer_bench.h"

#include <algorithm>

#include "base/cat.h"
#include "bench/experts/expert_set.h"
#include "bench/experts/expert_stage.h"
#include "bench/experts/verify.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

double expert_weights(const ModelShape& model) {
  return 3 * static_cast<double>(model.hidden * model.intermediate);
}

class LayerBench {
 public:
  LayerBench(const ModelShape& model, const WeightDType& dtype, const ExpertSet& set,
             int64_t max_tokens, Communicator& comm, const BenchContext& context)
      : model_(model),
        dtype_(dtype),
        set_(set),
        context_(context),
        stage_(model, make_experts(model, dtype, set), max_tokens, comm, context.team),
        x_memory_(shape_bytes(dtype.rows, max_tokens, model.hidden)),
        out_memory_(cells(max_tokens, model.hidden) * sizeof(float)),
        x_(x_memory_.data(), max_tokens, model.hidden, model.hidden, dtype.rows),
        out_(out_memory_.as<float>(), max_tokens, model.hidden) {
    fill_random(x_, 1.0, 4, context.team);
  }

  LayerRow run(int64_t tokens, RoutingKind routing) {
    const std::string what =
        cat(model_.name, " ", dtype_.name, ", ", tokens, " tokens, ", routing_name(routing));
    context_.progress(what);
    const LayerCalls calls(model_, dtype_, tokens, routing);
    const Picks& first = calls.picks.front();
    const Rows x = x_.slice(0, tokens), out = out_.slice(0, tokens);
    stage_.run(x, first, out);
    const auto mlp_of = [&](int32_t slot) { return set_.source(slot % set_.size()); };
    verify_layer(dtype_, mlp_of, x, first.ids, first.weights, model_.top_k, out, what);
    std::vector<double> moving;
    const Subject subject{.run =
                              [&](int64_t call) {
                                stage_.run(x, calls.picks[calls.at(call + 1)], out);
                                moving.push_back(100 * stage_.moving_share());
                              },
                          .work = [&](int64_t call) -> std::span<const Part> {
                            return calls.parts[calls.at(call + 1)];
                          }};
    const Timing timing = measure(subject, dtype_.dot, context_.effort, context_.ceilings);
    return {model_.name,         dtype_.name, routing, tokens, timing, spread_of(moving).median,
            calls.active_experts};
  }

 private:
  const ModelShape& model_;
  const WeightDType& dtype_;
  const ExpertSet& set_;
  const BenchContext& context_;
  ExpertStage stage_;
  Buffer x_memory_, out_memory_;
  Rows x_, out_;
};

}  // namespace

std::vector<Part> layer_parts(const ModelShape& model, const WeightDType& dtype,
                              const Picks& picks) {
  const double weights = expert_weights(model);
  std::vector<Part> parts;
  for (const int32_t count : counts_of(picks.ids, model.experts)) {
    if (count > 0) parts.push_back({2 * weights * count, weights * dtype.bits / 8});
  }
  return parts;
}

LayerCalls::LayerCalls(const ModelShape& model, const WeightDType& dtype, int64_t tokens,
                       RoutingKind routing) {
  const int64_t count = std::clamp<int64_t>(4096 / tokens, 2, 64);
  for (int64_t c = 0; c < count; ++c) {
    picks.push_back(route(routing, tokens, model.experts, model.top_k, c));
    parts.push_back(layer_parts(model, dtype, picks.back()));
    active_experts += static_cast<double>(parts.back().size()) / static_cast<double>(count);
  }
}

int64_t num_cold_experts(const ModelShape& model, const WeightDType& dtype, size_t cold_bytes) {
  return std::min<int64_t>(model.experts,
                           cold_count(expert_weights(model) * dtype.bits / 8, cold_bytes));
}

std::vector<LayerRow> bench_layer(const ModelShape& model, const WeightDType& dtype,
                                  const std::vector<int64_t>& tokens,
                                  const std::vector<RoutingKind>& routings,
                                  const BenchContext& context) {
  context.progress(cat(model.name, " ", dtype.name, ": packing weights"));
  const int64_t count = num_cold_experts(model, dtype, context.cold_bytes);
  const ExpertSet set(dtype, model.hidden, model.intermediate, count, context.team);
  const int64_t most = *std::max_element(tokens.begin(), tokens.end());
  std::vector<LayerRow> rows;
  run_ranks(1, [&](Communicator& comm) {
    LayerBench layer(model, dtype, set, most, comm, context);
    for (const RoutingKind routing : routings) {
      for (const int64_t one : tokens) rows.push_back(layer.run(one, routing));
    }
  });
  return rows;
}

}  // namespace trimtab::bench
