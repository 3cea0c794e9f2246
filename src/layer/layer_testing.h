// SPDX-License-Identifier: Apache-2.0
// For tests of the layer: one small layer's weights, a double-precision reference of the layer's
// definition, and inputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/layer.h"
#include "trimtab/placement.h"

namespace trimtab::layer_testing {

inline constexpr int kHidden = 24;
inline constexpr int kInner = 20;
inline constexpr int kSharedInner = 12;
inline constexpr int kExperts = 6;
inline constexpr int kZeroExperts = 2;
inline constexpr int kTopK = 3;
inline constexpr int64_t kMaxTokens = 32;
inline constexpr int kVocab = 40;  // of hashed routers

inline std::vector<float> random_floats(size_t count, uint64_t seed, float scale) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(rng);
  return values;
}

inline MatrixSource matrix(const std::vector<float>& v, int64_t rows, int64_t cols) {
  return {reinterpret_cast<const std::byte*>(v.data()), DType::kF32, rows, cols, cols, 1};
}

inline double dot(const float* a, const float* b, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// One gated MLP as plain vectors.
struct MlpWeights {
  MlpWeights(int inner_size, uint64_t seed)
      : inner(inner_size),
        gate(random_floats(static_cast<size_t>(inner * kHidden), seed, 0.3F)),
        up(random_floats(gate.size(), seed + 1, 0.3F)),
        down(random_floats(gate.size(), seed + 2, 0.3F)) {}

  MlpSource source() const {
    return {.gate = matrix(gate, inner, kHidden),
            .up = matrix(up, inner, kHidden),
            .down = matrix(down, kHidden, inner),
            .gate_bias = {},
            .up_bias = {},
            .down_bias = {}};
  }
  std::shared_ptr<const Mlp> packed(WeightFormat format) const {
    return std::make_shared<const Mlp>(source(), Activation{}, format);
  }
  // y += weight * mlp(x)
  void accumulate(const float* x, double weight, double* y) const {
    std::vector<double> act(inner);
    for (int i = 0; i < inner; ++i) {
      const double g = dot(gate.data() + i * kHidden, x, kHidden);
      act[i] = g / (1 + std::exp(-g)) * dot(up.data() + i * kHidden, x, kHidden);
    }
    for (int h = 0; h < kHidden; ++h) {
      double sum = 0;
      for (int i = 0; i < inner; ++i) {
        sum += act[i] * static_cast<double>(down[static_cast<size_t>(h * inner + i)]);
      }
      y[h] += weight * sum;
    }
  }

  int inner;
  std::vector<float> gate, up, down;
};

struct Options {
  std::string dispatcher = "pull";
  DType dtype = DType::kF32;
  bool shared = true;
  int zero_experts = kZeroExperts;
  int threads = 1;
  bool hashed = false;  // routes by token id
  SplitRule split = SplitRule::kStatic;
  int layer = 7;
  int64_t row_budget = 0;
  // Reading an expert costs as much as eight rows.
  std::shared_ptr<const CostModel> cost = std::make_shared<const CostModel>(
      std::vector<CostPoint>{{.rows = 1, .picoseconds = 900}, {.rows = 11, .picoseconds = 1900}});
};

// How picks come to replicas: a dispatcher and a rule.
struct Way {
  const char* dispatcher;
  SplitRule split = SplitRule::kStatic;

  std::string name() const {
    constexpr const char* kRules[] = {"", "_round_robin", "_split", "_time"};
    return std::string(dispatcher) + kRules[static_cast<size_t>(split)];
  }
};
inline constexpr Way kWays[] = {{"pull"},
                                {"pull", SplitRule::kRoundRobin},
                                {"pull", SplitRule::kSplit},
                                {"fused"},
                                {"fused", SplitRule::kSplit},
                                {"all_gather"},
                                {"all_to_all"},
                                {"all_to_all", SplitRule::kSplit},
                                {"mc2"},
                                {"pull", SplitRule::kTime},
                                {"fused", SplitRule::kTime},
                                {"all_to_all", SplitRule::kTime},
                                {"packed"}};

// What the slots of a rank hold, of the experts by logical number.
inline std::vector<std::shared_ptr<const Mlp>> slots_of(
    const Placement& placement, int rank, const std::vector<std::shared_ptr<const Mlp>>& experts) {
  std::vector<std::shared_ptr<const Mlp>> slots;
  for (int s = placement.first_slot(rank); s < placement.first_slot(rank + 1); ++s) {
    slots.push_back(experts[static_cast<size_t>(placement.logical(0)[s])]);
  }
  return slots;
}

// The weights of one layer, and what the layer must answer.
struct World {
  explicit World(const Options& o) : options(o) {
    for (int e = 0; e < kExperts; ++e)
      experts.emplace_back(kInner, 100 + 10 * static_cast<uint64_t>(e));
    for (int e = 0; e < kExperts; ++e) packed.push_back(experts[e].packed(o.dtype));
    gate = std::make_shared<const Linear>(matrix(gate_weight, kExperts + o.zero_experts, kHidden),
                                          VectorSource{}, DType::kF32);
    RouterConfig config{.num_experts = kExperts,
                        .num_zero_experts = o.zero_experts,
                        .top_k = kTopK,
                        .routed_scaling_factor = 1.5F};
    for (int i = 0; o.hashed && i < kVocab * kTopK; ++i)
      config.hash_table.push_back(i * i % kExperts);
    router = std::make_shared<const Router>(config);
    shared_packed = shared.packed(o.dtype);
    shared_gate = std::make_shared<const Linear>(matrix(shared_gate_weight, 1, kHidden),
                                                 VectorSource{}, DType::kF32);
  }

  std::unique_ptr<Dispatcher> dispatcher(const Placement& placement, int rank,
                                         int top_k = kTopK) const {
    return dispatcher(placement, rank, top_k, options.dtype);
  }
  std::unique_ptr<Dispatcher> dispatcher(const Placement& placement, int rank, int top_k,
                                         DType rows) const {
    DispatchShape shape{kMaxTokens, kHidden, top_k, rows, placement.first_slots()};
    shape.row_budget = options.row_budget;
    if (options.split != SplitRule::kStatic) shape.num_experts = placement.num_experts();
    return make_dispatcher(options.dispatcher, shape, rank);
  }

  // That the dispatcher brings.
  Format format() const {
    return options.dispatcher == "fused" ? Format::kIndirect : Format::kStandard;
  }

  MoeLayer layer(const Placement& placement, int rank) const {
    return MoeLayer({.gate = gate,
                     .router = router,
                     .replicas = std::make_shared<const SplitTable>(placement, 0),
                     .split = options.split,
                     .cost = options.cost,
                     .dispatcher = dispatcher(placement, rank),
                     .experts = make_grouped_experts(slots_of(placement, rank, packed), kHidden,
                                                     options.dtype, format()),
                     .shared = options.shared
                                   ? std::optional(SharedExperts(shared_packed, shared_gate))
                                   : std::nullopt,
                     .layer = options.layer});
  }

  std::vector<double> expected(const float* x) const {
    std::vector<double> y(kHidden, 0.0);
    const int columns = kExperts + options.zero_experts;
    std::vector<double> logits(columns);
    for (int e = 0; e < columns; ++e) {
      logits[e] = dot(gate_weight.data() + e * kHidden, x, kHidden);
    }
    std::vector<int> order(columns);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    double sum = 0;
    for (int k = 0; k < kTopK; ++k) sum += std::exp(logits[static_cast<size_t>(order[k])]);
    for (int k = 0; k < kTopK; ++k) {
      const int e = order[k];
      const double w = 1.5 * std::exp(logits[e]) / sum;
      if (e < kExperts) {
        experts[e].accumulate(x, w, y.data());
      } else {
        for (int h = 0; h < kHidden; ++h) y[h] += w * static_cast<double>(x[h]);
      }
    }
    if (options.shared) {
      shared.accumulate(x, 1 / (1 + std::exp(-dot(shared_gate_weight.data(), x, kHidden))),
                        y.data());
    }
    return y;
  }

  Options options;
  std::vector<float> gate_weight =
      random_floats(static_cast<size_t>((kExperts + kZeroExperts) * kHidden), 1, 0.3F);
  std::vector<float> shared_gate_weight = random_floats(kHidden, 2, 0.3F);
  std::vector<MlpWeights> experts;
  MlpWeights shared{kSharedInner, 3};
  std::vector<std::shared_ptr<const Mlp>> packed;
  std::shared_ptr<const Linear> gate, shared_gate;
  std::shared_ptr<const Router> router;
  std::shared_ptr<const Mlp> shared_packed;
};

inline int64_t tokens_of(int rank) {
  return rank == 1 ? 0 : 5 + 3 * (rank % 3);
}

inline std::vector<float> input_of(int rank, int64_t tokens, uint64_t seed = 50) {
  return random_floats(static_cast<size_t>(tokens * kHidden), seed + static_cast<uint64_t>(rank),
                       1.0F);
}

// f32: every intermediate is a sum of at most kHidden products, so a few dozen epsilons of the
// row's norm. bf16: x, the weights and the activation are rounded (2^-9 each) before products that
// partly cancel.
inline double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-5 : 3e-2;
}

inline void expect_row(std::span<const double> want, const float* out, DType dtype,
                       const std::string& where) {
  double norm = 0;
  double error = 0;
  for (size_t h = 0; h < want.size(); ++h) {
    norm += want[h] * want[h];
    error = std::max(error, std::abs(want[h] - static_cast<double>(out[h])));
  }
  EXPECT_LE(error, tolerance(dtype) * std::sqrt(norm)) << where;
}

// more(x, y) adds to y [kHidden] what the test's layer has beyond the world's.
inline void expect_rows(
    const World& world, const std::vector<float>& x, const std::vector<float>& out,
    const char* where,
    const std::function<void(const float*, double*)>& more = [](const float*, double*) {}) {
  for (size_t t = 0; t * kHidden < x.size(); ++t) {
    std::vector<double> want = world.expected(x.data() + t * kHidden);
    more(x.data() + t * kHidden, want.data());
    expect_row(want, out.data() + t * kHidden, world.options.dtype,
               std::string(where) + " token " + std::to_string(t));
  }
}

// A lane with a workspace of its own for calls of the layer.
struct OwnLane {
  OwnLane(Communicator& comm, const MoeLayer& layer, Team& team)
      : workspace(comm.allocate(layer.workspace_bytes(kMaxTokens))), lane{comm, workspace, team} {}
  OwnLane(const OwnLane&) = delete;
  OwnLane& operator=(const OwnLane&) = delete;

  Workspace workspace;
  Lane lane;
};

// One call with x [tokens, kHidden], which must give its memory back.
inline std::vector<float> forward(const MoeLayer& layer, const std::vector<float>& x, Lane& lane,
                                  const ForwardOptions& options = {}) {
  const int64_t tokens = std::ssize(x) / kHidden;
  std::vector<float> out(x.size(), -1.0F);
  run(layer.forward(ConstRows(x.data(), tokens, kHidden), Rows(out.data(), tokens, kHidden), lane,
                    options));
  EXPECT_EQ(lane.workspace.mark(), 0U);
  return out;
}

}  // namespace trimtab::layer_testing
