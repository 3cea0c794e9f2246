// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/layer_bench.h"

#include <algorithm>

#include "base/cat.h"
#include "bench/experts/expert_set.h"
#include "bench/experts/expert_stage.h"
#include "bench/experts/verify.h"

namespace trimtab::bench {
namespace {

// Calls with picks of their own, before they come again.
int num_batches(int64_t tokens) {
  return static_cast<int>(std::clamp<int64_t>(4096 / tokens, 2, 64));
}

double expert_weights(const ModelShape& model) {
  return 3 * static_cast<double>(model.hidden * model.intermediate);
}

class LayerBench {
 public:
  LayerBench(const ModelShape& model, const WeightDType& dtype, const ExpertSet& set, int64_t max_tokens,
             Communicator& comm, const BenchContext& context)
      : model_(model),
        dtype_(dtype),
        set_(set),
        context_(context),
        stage_(model, dtype, set, max_tokens, comm, context.team),
        x_memory_(static_cast<size_t>(max_tokens * model.hidden) * static_cast<size_t>(bits(dtype.rows)) / 8),
        out_memory_(static_cast<size_t>(max_tokens * model.hidden) * sizeof(float)),
        x_(x_memory_.data(), max_tokens, model.hidden, model.hidden, dtype.rows),
        out_(out_memory_.as<float>(), max_tokens, model.hidden) {
    fill_random(x_, 1.0, 4, context.team);
  }

  LayerRow run(int64_t tokens, RoutingKind routing) {
    const std::string what = cat(model_.name, " ", dtype_.name, ", ", tokens, " tokens, ", routing_name(routing));
    context_.progress(what);
    std::vector<Picks> picks;
    std::vector<std::vector<Part>> parts;
    double active = 0;
    for (int b = 0; b < num_batches(tokens); ++b) {
      picks.push_back(route(routing, tokens, model_.experts, model_.top_k, static_cast<uint64_t>(b)));
      parts.push_back(layer_parts(model_, dtype_, picks.back()));
      active += static_cast<double>(parts.back().size()) / num_batches(tokens);
    }
    const Rows x = x_.slice(0, tokens), out = out_.slice(0, tokens);
    stage_.run(x, picks.front(), out);
    const auto mlp_of = [&](int32_t slot) { return set_.source(slot % set_.size()); };
    verify_layer(dtype_, mlp_of, x, picks.front().ids, picks.front().weights, model_.top_k, out, what);
    std::vector<double> moving;
    const Subject subject{.run =
                              [&](int64_t call) {
                                stage_.run(x, picks[static_cast<size_t>(call + 1) % picks.size()], out);
                                moving.push_back(100 * stage_.moving_share());
                              },
                          .work = [&](int64_t call) -> std::span<const Part> {
                            return parts[static_cast<size_t>(call + 1) % parts.size()];
                          }};
    const Timing timing = measure(subject, dtype_.dot, context_.effort, context_.ceilings);
    return {model_.name, dtype_.name, routing, tokens, timing, spread_of(moving).median, active};
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

std::vector<Part> layer_parts(const ModelShape& model, const WeightDType& dtype, const Picks& picks) {
  const double weights = expert_weights(model);
  std::vector<Part> parts;
  for (const int32_t count : counts_of(picks.ids, model.experts)) {
    if (count > 0) parts.push_back({2 * weights * count, weights * dtype.bits / 8});
  }
  return parts;
}

std::vector<LayerRow> bench_layer(const ModelShape& model, const WeightDType& dtype, const std::vector<int64_t>& tokens,
                                  const std::vector<RoutingKind>& routings, const BenchContext& context) {
  context.progress(cat(model.name, " ", dtype.name, ": packing weights"));
  const double bytes = expert_weights(model) * dtype.bits / 8;
  const int64_t count = std::min<int64_t>(model.experts, cold_count(bytes, context.cold_bytes));
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
