// SPDX-License-Identifier: Apache-2.0
#include "model/module_list.h"

#include <gtest/gtest.h>

namespace trimtab {
namespace {

TEST(ModuleList, OfCompressedTensors) {
  const ModuleList list({"lm_head", "re:.*self_attn", "model.layers.0.mlp.gate"},
                        ModuleList::Syntax::kCompressedTensors);
  EXPECT_TRUE(list.contains("lm_head"));
  EXPECT_FALSE(list.contains("model.lm_head"));
  EXPECT_TRUE(list.contains("model.layers.3.self_attn.k_proj"));
  EXPECT_TRUE(list.contains("model.layers.0.mlp.gate"));
  EXPECT_FALSE(list.contains("model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(list.contains("model.layers.0-mlp.gate"));
  EXPECT_TRUE(ModuleList({"Linear"}, ModuleList::Syntax::kCompressedTensors)
                  .contains("model.layers.0.mlp.gate"));
  EXPECT_FALSE(ModuleList({}, ModuleList::Syntax::kCompressedTensors).contains("lm_head"));
}

TEST(ModuleList, OfTransformers) {
  const ModuleList list({"model.layers.1", "model.layers.*.self_attn", "lm_head", "mlp.gate"},
                        ModuleList::Syntax::kTransformers);
  EXPECT_TRUE(list.contains("model.layers.1"));
  EXPECT_TRUE(list.contains("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(list.contains("model.layers.11.mlp.up_proj"));
  EXPECT_TRUE(list.contains("model.layers.11.self_attn.q_proj"));
  EXPECT_FALSE(list.contains("model.layers.11.self_attn_norm"));
  EXPECT_TRUE(list.contains("some.lm_head"));
  EXPECT_TRUE(list.contains("model.layers.11.mlp.gate"));
  EXPECT_FALSE(list.contains("model.layers.11.mlp.gate_proj"));
  EXPECT_TRUE(
      ModuleList({"model-layers."}, ModuleList::Syntax::kTransformers).contains("model-layers.1"));
}

TEST(QuantisedModules, TheFirstGroupThatHasIt) {
  QuantizationConfig config;
  config.method = QuantizationConfig::Method::kCompressedTensors;
  config.groups.resize(2);
  config.groups[0].targets = {"re:.*experts"};
  config.groups[1].targets = {"Linear"};
  config.ignore = {"lm_head"};
  const QuantisedModules modules(config);
  EXPECT_EQ(modules.group_of("a.experts.0"), &config.groups[0]);
  EXPECT_EQ(modules.group_of("a.self_attn.q_proj"), &config.groups[1]);
  EXPECT_EQ(modules.group_of("lm_head"), nullptr);
  const QuantizationConfig none;
  EXPECT_EQ(QuantisedModules(none).group_of("a.experts.0"), nullptr);
}

}  // namespace
}  // namespace trimtab
