// SPDX-License-Identifier: Apache-2.0
// The whole experts stage over numbers of tokens and kinds of routing, other picks at every call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/experts/gemm_bench.h"
#include "bench/experts/routing.h"
#include "trimtab/table.h"

namespace trimtab::bench {

struct LayerRow {
  std::string_view model;
  std::string_view dtype;
  RoutingKind routing;
  int64_t tokens;
  Timing timing;
  double pct_moving;      // of the time: sorting rows by expert and summing them up again
  double active_experts;  // mean over the calls
};

// The arithmetic and the weights of a call, an active expert a part.
std::vector<Part> layer_parts(const ModelShape& model, const WeightDType& dtype,
                              const Picks& picks);

// Calls with picks of their own, before they come again, and what they cost.
struct LayerCalls {
  LayerCalls(const ModelShape& model, const WeightDType& dtype, int64_t tokens,
             RoutingKind routing);
  size_t at(int64_t call) const { return cells(call) % picks.size(); }

  std::vector<Picks> picks;
  std::vector<std::vector<Part>> parts;
  double active_experts = 0;  // mean
};

// How many experts of the model have weights of their own, so that a call finds them cold.
int64_t num_cold_experts(const ModelShape& model, const WeightDType& dtype, size_t cold_bytes);

// Verifies each number of tokens, then times it. Throws Error when a result is wrong.
std::vector<LayerRow> bench_layer(const ModelShape& model, const WeightDType& dtype,
                                  const std::vector<int64_t>& tokens,
                                  const std::vector<RoutingKind>& routings,
                                  const BenchContext& context);

}  // namespace trimtab::bench
