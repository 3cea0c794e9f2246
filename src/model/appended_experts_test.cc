// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "model/checkpoint_testing.h"

namespace trimtab {
namespace {

struct Fixture {
  explicit Fixture(const std::string& name)
      : root(cat(TRIMTAB_SOURCE_DIR "/tests/fixtures/checkpoints/", name)),
        config(read_model_config(root)),
        tensors(SafeTensors::open(root)) {
    while (!config.is_moe_layer[layer]) ++layer;
    moe = find_moe_tensors(tensors, config, layer);
  }
  std::string root;
  ModelConfig config;
  SafeTensors tensors;
  int layer = 0;
  MoeTensors moe;
};

// silu(gate x) (up x), then down: plain sums in double.
std::vector<double> mlp_of(const MlpSource& mlp, const std::vector<float>& x) {
  const auto product = [&](const MatrixSource& w, int64_t i, const auto& v) {
    double sum = 0;
    for (int64_t j = 0; j < w.cols; ++j) sum += double{w.at(i, j)} * static_cast<double>(v[j]);
    return sum;
  };
  std::vector<double> act, y;
  for (int64_t i = 0; i < mlp.gate.rows; ++i) {
    const double gate = product(mlp.gate, i, x);
    act.push_back(gate / (1 + std::exp(-gate)) * product(mlp.up, i, x));
  }
  for (int64_t i = 0; i < mlp.down.rows; ++i) y.push_back(product(mlp.down, i, act));
  return y;
}

// R14: shared experts that are appended to the routed ones equal the whole.
TEST(AppendedExperts, PartsAddUpToTheWhole) {
  for (const char* name :
       {"deepseek_v2", "deepseek_v3", "deepseek_v3_fp8", "glm4_moe", "kimi_k2"}) {
    SCOPED_TRACE(name);
    const Fixture f(name);
    ASSERT_TRUE(f.moe.shared.has_value());
    const std::vector<MlpSource> parts = appended_experts(f.config, f.moe);
    ASSERT_EQ(std::ssize(parts),
              f.config.shared_intermediate_size / f.config.moe_intermediate_size);
    std::vector<float> x;
    for (int j = 0; j < f.config.hidden_size; ++j)
      x.push_back(std::cos(0.7F * static_cast<float>(j)));
    const std::vector<double> want = mlp_of(*f.moe.shared, x);
    std::vector<double> sum(want.size());
    for (const MlpSource& part : parts) {
      EXPECT_EQ(part.gate.rows, f.config.moe_intermediate_size);
      const std::vector<double> y = mlp_of(part, x);
      for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
    }
    double norm = 0;
    for (const double value : want) norm = std::max(norm, std::abs(value));
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], want[i], 1e-9 * norm);
  }
}

TEST(AppendedExperts, WhatCanNotBeDividedIsRefused) {
  const auto error = [](const ModelConfig& config, const MoeTensors& moe) {
    return error_text<InvalidArgument>([&] { appended_experts(config, moe); });
  };
  const Fixture gated("qwen2_moe");
  EXPECT_NE(error(gated.config, gated.moe).find("with a gate of their own"), std::string::npos);
  EXPECT_TRUE(appended_experts(gated.config, MoeTensors{}).empty());

  Fixture f("deepseek_v2");
  ModelConfig odd = f.config;
  odd.moe_intermediate_size = f.config.shared_intermediate_size - 1;
  EXPECT_NE(error(odd, f.moe).find("are no multiple of the routed experts'"), std::string::npos);

  // What is no number equals nothing.
  MoeTensors broken = f.moe;
  std::vector<float> nan(static_cast<size_t>(broken.shared->up.rows * broken.shared->up.cols),
                         std::nanf(""));
  broken.shared->up.data = reinterpret_cast<const std::byte*>(nan.data());
  broken.shared->up.dtype = DType::kF32;
  EXPECT_NE(error(f.config, broken).find("parts differ from the whole"), std::string::npos);
}

// Blocks of scales that a part would begin in the middle of.
TEST(AppendedExperts, BlocksAreNotCut) {
  const int64_t hidden = 16, width = 24;  // two parts of 12
  const std::vector<int8_t> codes(static_cast<size_t>(hidden * width), 1);
  const std::vector<float> scales(256, 0.5F);
  ModelConfig config;
  config.moe_intermediate_size = 12;
  const auto moe = [&](int64_t block_rows, int64_t block_cols) {
    const auto matrix = [&](int64_t rows, int64_t cols, int64_t b_rows, int64_t b_cols) {
      return MatrixSource{reinterpret_cast<const std::byte*>(codes.data()),
                          DType::kI8,
                          rows,
                          cols,
                          cols,
                          1,
                          {reinterpret_cast<const std::byte*>(scales.data()), DType::kF32, b_rows,
                           b_cols, (cols - 1) / b_cols + 1}};
    };
    MoeTensors result;
    result.shared = MlpSource{matrix(width, hidden, block_rows, hidden),
                              matrix(width, hidden, block_rows, hidden),
                              matrix(hidden, width, 1, block_cols),
                              {},
                              {},
                              {}};
    return result;
  };
  EXPECT_EQ(appended_experts(config, moe(4, 4)).size(), 2U);
  EXPECT_EQ(appended_experts(config, moe(width, width)).size(), 2U);
  for (const MoeTensors& bad : {moe(8, 4), moe(4, 8)}) {
    const std::string text = error_text<InvalidArgument>([&] { appended_experts(config, bad); });
    EXPECT_NE(text.find("12 to 23 begin inside a block of scales"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace trimtab
