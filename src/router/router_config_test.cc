// SPDX-License-Identifier: Apache-2.0
// Everything that Router's constructor refuses, with what the text must hold.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "router/router_testing.h"

namespace trimtab {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

RouterConfig base() {
  RouterConfig config;
  config.num_experts = 16;
  config.top_k = 4;
  return config;
}

// A config that works is changed by `change` into one whose refusal names all of `parts`.
void expect_refused(const std::function<void(RouterConfig&)>& change,
                    const std::vector<std::string>& parts) {
  RouterConfig config = base();
  change(config);
  const std::string text = refusal([&] { Router router(config); });
  EXPECT_NE(text, "") << "accepted, should name " << parts[0];
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << "\n lacks " << part;
}

void expect_accepted(const std::function<void(RouterConfig&)>& change) {
  RouterConfig config = base();
  change(config);
  EXPECT_EQ(refusal([&] { Router router(config); }), "");
}

void custom(RouterConfig& c) {
  c.custom = [](ConstRows, ConstRows, int, bool, int, std::span<int32_t>, std::span<float>) {};
}

// R16: sizes are checked: logits columns, top-k, groups that hold enough experts.
TEST(RouterConfig, Sizes) {
  expect_accepted([](RouterConfig&) {});
  expect_accepted([](RouterConfig& c) { c.num_experts = c.top_k = RouterConfig::kMaxExperts; });
  expect_refused([](RouterConfig& c) { c.num_experts = 0; }, {"num_experts is 0", "2048"});
  expect_refused([](RouterConfig& c) { c.num_experts = 2049; }, {"num_experts is 2049", "2048"});
  expect_refused([](RouterConfig& c) { c.num_zero_experts = -1; }, {"num_zero_experts is -1"});
  expect_refused([](RouterConfig& c) { c.num_zero_experts = 2033; },
                 {"num_zero_experts is 2033", "16 experts"});
  expect_refused([](RouterConfig& c) { c.num_zero_experts = std::numeric_limits<int>::max(); },
                 {"2147483647"});
  expect_refused([](RouterConfig& c) { c.num_appended_experts = -2; },
                 {"num_appended_experts is -2"});
  expect_refused([](RouterConfig& c) { c.num_appended_experts = 2049; },
                 {"num_appended_experts is 2049"});
  expect_refused([](RouterConfig& c) { c.top_k = 0; }, {"top_k is 0", "16"});
  expect_accepted([](RouterConfig& c) { c.top_k = 16; });
  expect_refused([](RouterConfig& c) { c.top_k = 17; }, {"top_k is 17", "num_experts = 16"});
  // Zero experts do not make room for more picks.
  expect_refused([](RouterConfig& c) { c.top_k = 17, c.num_zero_experts = 4; },
                 {"top_k is 17", "num_experts = 16"});
}

TEST(RouterConfig, Groups) {
  expect_accepted(
      [](RouterConfig& c) { c.num_groups = 4, c.top_groups = 1; });  // 4 experts for 4 picks
  expect_refused([](RouterConfig& c) { c.num_groups = 0; }, {"num_groups is 0"});
  expect_refused([](RouterConfig& c) { c.num_groups = 5; }, {"num_groups is 5", "16"});
  expect_refused([](RouterConfig& c) { c.num_groups = 4, c.top_groups = 0; },
                 {"top_groups is 0", "4"});
  expect_refused([](RouterConfig& c) { c.num_groups = 4, c.top_groups = 5; },
                 {"top_groups is 5", "4"});
  expect_refused([](RouterConfig& c) { c.top_groups = 2; }, {"top_groups is 2", "num_groups = 1"});
  expect_refused([](RouterConfig& c) { c.num_groups = 8, c.top_groups = 1; },
                 {"1 groups of 2", "top_k = 4"});
  expect_refused(
      [](RouterConfig& c) {
        c.num_groups = c.top_groups = 16, c.group_score = GroupScore::kTop2Sum;
      },
      {"16 groups of 16 experts have 1"});
  expect_accepted([](RouterConfig& c) { c.num_groups = c.top_groups = 16; });
  expect_refused([](RouterConfig& c) { c.num_groups = c.top_groups = 4, c.num_zero_experts = 3; },
                 {"groups (4)", "zero experts (3)"});
}

// D4: top-k is chosen per group, so groups must divide it.
TEST(RouterConfig, PicksInEveryGroup) {
  const auto in_groups = [](RouterConfig& c, int top_k, int groups, int top_groups) {
    c.picks_in_every_group = true;
    c.top_k = top_k, c.num_groups = groups, c.top_groups = top_groups;
  };
  expect_accepted([&](RouterConfig& c) { in_groups(c, 4, 4, 4); });
  expect_accepted([&](RouterConfig& c) { in_groups(c, 16, 2, 2); });
  expect_refused([&](RouterConfig& c) { in_groups(c, 6, 4, 4); }, {"top_k is 6", "num_groups = 4"});
  expect_refused([&](RouterConfig& c) { in_groups(c, 2, 4, 4); }, {"top_k is 2", "num_groups = 4"});
  expect_refused([&](RouterConfig& c) { in_groups(c, 4, 1, 1); }, {"num_groups is 1"});
  expect_refused([&](RouterConfig& c) { in_groups(c, 4, 4, 2); },
                 {"top_groups is 2", "num_groups = 4"});
  expect_refused(
      [&](RouterConfig& c) { in_groups(c, 4, 4, 4), c.group_score = GroupScore::kTop2Sum; },
      {"group_score"});
}

TEST(RouterConfig, Values) {
  expect_refused([](RouterConfig& c) { c.routed_scaling_factor = 0.0F; },
                 {"routed_scaling_factor is 0"});
  expect_refused([](RouterConfig& c) { c.routed_scaling_factor = -2.5F; },
                 {"routed_scaling_factor is -2.5"});
  expect_refused([](RouterConfig& c) { c.routed_scaling_factor = kInf; },
                 {"routed_scaling_factor is inf"});
  expect_refused([](RouterConfig& c) { c.routed_scaling_factor = kNan; },
                 {"routed_scaling_factor is nan"});
  expect_refused([](RouterConfig& c) { c.selection_bias.resize(15); }, {"15 values", "16 experts"});
  expect_refused([](RouterConfig& c) { c.selection_bias.resize(16), c.num_zero_experts = 2; },
                 {"16 values", "18 experts"});
  expect_accepted([](RouterConfig& c) { c.selection_bias.resize(18), c.num_zero_experts = 2; });
  expect_refused([](RouterConfig& c) { c.selection_bias.resize(16), c.selection_bias[3] = kNan; },
                 {"expert 3 is nan"});
  expect_refused([](RouterConfig& c) { c.selection_bias.resize(16), c.selection_bias[5] = -kInf; },
                 {"expert 5 is -inf"});
}

TEST(RouterConfig, HashTable) {
  expect_accepted([](RouterConfig& c) { c.hash_table.assign(8, 15); });
  expect_refused([](RouterConfig& c) { c.hash_table.resize(10); }, {"10 ids", "top_k = 4"});
  expect_refused([](RouterConfig& c) { c.hash_table.resize(12), c.hash_table[9] = 16; },
                 {"token 2", "expert 16 of 16"});
  expect_refused([](RouterConfig& c) { c.hash_table.resize(12), c.hash_table[3] = -1; },
                 {"token 0", "expert -1"});
}

TEST(RouterConfig, CombinationsThatWouldIgnoreAnOption) {
  using Change = std::function<void(RouterConfig&)>;
  const Change groups = [](RouterConfig& c) { c.num_groups = 4, c.top_groups = 2; };
  const Change bias = [](RouterConfig& c) { c.selection_bias.resize(16); };
  const Change hash = [](RouterConfig& c) { c.hash_table.resize(8); };
  const Change after = [](RouterConfig& c) { c.softmax_after_top_k = true; };
  const Change sigmoid = [](RouterConfig& c) { c.scoring = Scoring::kSigmoid; };
  const Change zero = [](RouterConfig& c) { c.num_zero_experts = 2; };
  const Change appended = [](RouterConfig& c) { c.num_appended_experts = 2; };
  const struct {
    Change a, b;
    std::vector<std::string> parts;
  } refused[] = {
      {custom, sigmoid, {"custom", "scoring"}},
      {custom, groups, {"custom", "groups"}},
      {custom, bias, {"custom", "selection_bias"}},
      {custom, after, {"custom", "softmax_after_top_k"}},
      {custom, hash, {"custom", "hash_table"}},
      {hash, groups, {"hash_table", "groups"}},
      {hash, bias, {"hash_table", "selection_bias"}},
      {hash, after, {"hash_table", "softmax_after_top_k"}},
      {after, sigmoid, {"softmax_after_top_k", "scoring"}},
      {after, groups, {"softmax_after_top_k", "groups"}},
      {after, bias, {"softmax_after_top_k", "selection_bias"}},
      {appended, zero, {"num_appended_experts", "num_zero_experts"}},
  };
  for (const auto& pair : refused) {
    expect_accepted(pair.a);
    expect_accepted(pair.b);
    expect_refused([&](RouterConfig& c) { pair.a(c), pair.b(c); }, pair.parts);
  }
  expect_accepted([&](RouterConfig& c) { custom(c), zero(c); });
  expect_accepted([&](RouterConfig& c) { hash(c), sigmoid(c); });
  expect_accepted([&](RouterConfig& c) { groups(c), bias(c), sigmoid(c), appended(c); });
}

}  // namespace
}  // namespace trimtab
