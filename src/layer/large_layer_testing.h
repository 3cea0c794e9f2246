// SPDX-License-Identifier: Apache-2.0
// For tests of layers whose sizes are those of small models: their products are so large that teams
// share them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "layer/layer_testing.h"
#include "trimtab/dispatch_choice.h"

namespace trimtab::large_layer {

using layer_testing::matrix;
using layer_testing::random_floats;
using layer_testing::slots_of;

inline constexpr int kHidden = 256, kInner = 160, kExperts = 6, kTopK = 2;
inline constexpr int64_t kMaxTokens = 24;

// Weights, packed once for each format.
struct Model {
  explicit Model(WeightFormat f) : format(f) {
    for (int e = 0; e < kExperts; ++e) {
      weights.push_back(random_floats(3 * kHidden * kInner, 10 + static_cast<uint64_t>(e), 0.06F));
      experts.push_back(packed(weights.back(), format));
    }
    shared = SharedExperts(packed(shared_weights, format.rows()),
                           std::make_shared<const Linear>(matrix(shared_gate_weight, 1, kHidden),
                                                          VectorSource{}, DType::kF32));
    gate = std::make_shared<const Linear>(matrix(gate_weight, kExperts, kHidden), VectorSource{},
                                          DType::kF32);
    router = std::make_shared<const Router>(RouterConfig{.num_experts = kExperts, .top_k = kTopK});
  }

  // weights: gate, up and down.
  static std::shared_ptr<const Mlp> packed(const std::vector<float>& weights, WeightFormat format) {
    constexpr int64_t kSize = kHidden * kInner;
    const auto part = [&](int64_t i, int64_t rows, int64_t cols) {
      return MatrixSource{reinterpret_cast<const std::byte*>(weights.data() + i * kSize),
                          DType::kF32,
                          rows,
                          cols,
                          cols,
                          1};
    };
    return std::make_shared<const Mlp>(MlpSource{part(0, kInner, kHidden),
                                                 part(1, kInner, kHidden),
                                                 part(2, kHidden, kInner),
                                                 {},
                                                 {},
                                                 {}},
                                       Activation{}, format);
  }

  // by_name: a name or "auto".
  std::shared_ptr<const Dispatcher> dispatcher(const Placement& placement, Communicator& comm,
                                               std::string_view by_name, SplitRule split) const {
    const DispatchSituation situation{.ranks = comm.size(),
                                      .hosts = 1 + *std::ranges::max_element(comm.hosts()),
                                      .shares_out = split != SplitRule::kStatic};
    DispatchShape shape{kMaxTokens, kHidden, kTopK, format.rows(), placement.first_slots()};
    if (split != SplitRule::kStatic) shape.num_experts = kExperts;
    return make_dispatcher(choose_dispatcher(situation, by_name).dispatcher, shape, comm.rank(),
                           comm.hosts());
  }
  MoeLayer layer(const Placement& placement, Communicator& comm, SplitRule split,
                 std::shared_ptr<const Dispatcher> made) const {
    return MoeLayer(parts(placement, comm, split, std::move(made)));
  }
  // Without shared experts.
  MoeLayer::Parts parts(const Placement& placement, Communicator& comm, SplitRule split,
                        std::shared_ptr<const Dispatcher> made) const {
    const Format rows = made->format();
    return {.gate = gate,
            .router = router,
            .replicas = std::make_shared<const SplitTable>(placement, 0, comm.hosts()),
            .split = split,
            .dispatcher = std::move(made),
            .experts = make_grouped_experts(slots_of(placement, comm.rank(), experts), kHidden,
                                            format, rows)};
  }

  // In double, from the weights before they are packed.
  std::vector<double> expected(const float* x) const {
    std::array<double, kExperts> logits;
    for (int e = 0; e < kExperts; ++e)
      logits[e] = layer_testing::dot(gate_weight.data() + e * kHidden, x, kHidden);
    std::vector<double> y(kHidden, 0.0);
    std::array<int, kTopK> picks{0, 0};
    for (int k = 0; k < kTopK; ++k) {
      double best = -1e30;
      for (int e = 0; e < kExperts; ++e) {
        if ((k == 0 || e != picks[0]) && logits[e] > best) best = logits[picks[k] = e];
      }
    }
    double sum = 0;
    for (const int e : picks) sum += std::exp(logits[e]);
    for (const int e : picks) accumulate(weights[e], x, std::exp(logits[e]) / sum, y);
    return y;
  }
  // The same of the shared experts.
  std::vector<double> expected_shared(const float* x) const {
    std::vector<double> y(kHidden, 0.0);
    const double gate_value = layer_testing::dot(shared_gate_weight.data(), x, kHidden);
    accumulate(shared_weights, x, 1 / (1 + std::exp(-gate_value)), y);
    return y;
  }
  // y += weight * mlp(x)
  static void accumulate(const std::vector<float>& mlp, const float* x, double weight,
                         std::vector<double>& y) {
    const float* const gate_rows = mlp.data();
    const float* const up_rows = gate_rows + kHidden * kInner;
    const float* const down_rows = up_rows + kHidden * kInner;
    std::array<double, kInner> act;
    for (int i = 0; i < kInner; ++i) {
      const double g = layer_testing::dot(gate_rows + i * kHidden, x, kHidden);
      act[i] = g / (1 + std::exp(-g)) * layer_testing::dot(up_rows + i * kHidden, x, kHidden);
    }
    for (int h = 0; h < kHidden; ++h) {
      double element = 0;
      for (int i = 0; i < kInner; ++i) element += act[i] * double{down_rows[h * kInner + i]};
      y[h] += weight * element;
    }
  }

  WeightFormat format;
  std::vector<float> gate_weight = random_floats(kExperts * kHidden, 1, 0.1F);
  std::vector<float> shared_gate_weight = random_floats(kHidden, 2, 0.1F);
  std::vector<float> shared_weights = random_floats(3 * kHidden * kInner, 3, 0.06F);
  std::vector<std::vector<float>> weights;  // [experts] gate, up and down
  std::vector<std::shared_ptr<const Mlp>> experts;
  std::shared_ptr<const Linear> gate;
  std::shared_ptr<const Router> router;
  std::optional<SharedExperts> shared;
};

// Distance of two rows over the length of the second.
template <class Wanted>
double distance(const float* row, const Wanted* wanted) {
  double error = 0, norm = 0;
  for (int h = 0; h < kHidden; ++h) {
    error += std::pow(double{row[h]} - double{wanted[h]}, 2);
    norm += std::pow(double{wanted[h]}, 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace trimtab::large_layer
