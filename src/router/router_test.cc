// SPDX-License-Identifier: Apache-2.0
// Hand-made cases, one for each thing a router must do or must not get wrong. Numbers with nine
// digits come from PyTorch, computed as the model's own code does.
#include "trimtab/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "router/router_testing.h"

namespace trimtab {
namespace {

using Ids = std::vector<int32_t>;
using Weights = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<float> kLogits = {0.5F, -1.25F, 2.0F, 0.75F, -0.5F, 1.5F, 1.25F, -2.0F};

// R3: top-k, divided by the sum of the picks if wanted, then scaled; equal scores go to the lower
//     id.
TEST(Router, MixtralRenormalisesOlmoeDoesNot) {
  RouterConfig config = config_of(8, 3);
  Routed got = route(config, kLogits);
  EXPECT_EQ(got.ids, (Ids{2, 5, 6}));
  expect_near(got.weights, {0.481024265F, 0.291755974F, 0.227219775F});
  config.renormalize = false;
  got = route(config, kLogits);
  EXPECT_EQ(got.ids, (Ids{2, 5, 6}));
  expect_near(got.weights, {0.366608292F, 0.222359166F, 0.173173487F});
}

// R5: only experts of the best groups take part; a group scores its maximum, or the sum of its best
//     two where there is a bias.
TEST(Router, DeepseekV2GroupsByMaximum) {
  RouterConfig config = config_of(8, 3);
  config.num_groups = 4;
  config.top_groups = 2;
  config.renormalize = false;
  config.routed_scaling_factor = 16.0F;
  const Routed got = route(config, kLogits);
  EXPECT_EQ(got.ids, (Ids{2, 5, 3}));  // 6 scores more than 3, but its group is out
  expect_near(got.weights, {5.865732670F, 3.557746649F, 1.680560589F}, 2e-5F);
}

// R4: a correction bias chooses, the weights are the scores without it; the bias stays f32.
TEST(Router, DeepseekV3BiasSelectsOnly) {
  RouterConfig config = config_of(8, 3);
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 4;
  config.top_groups = 2;
  config.group_score = GroupScore::kTop2Sum;
  config.selection_bias = {-0.30F, 0.10F, -0.60F, -0.25F, 0.35F, -0.40F, 0.05F, 0.20F};
  config.routed_scaling_factor = 2.5F;
  const Routed got = route(config, kLogits);
  EXPECT_EQ(
      got.ids,
      (Ids{6, 4,
           5}));  // 2 has the best score and 5 a better one than 4; weights are the plain scores
  expect_near(got.weights, {0.985213459F, 0.478525907F, 1.036260724F});
}

TEST(Router, DeepseekV4SqrtSoftplus) {
  RouterConfig config = config_of(8, 3);
  config.scoring = Scoring::kSqrtSoftplus;
  config.routed_scaling_factor = 1.5F;
  const Routed got = route(config, kLogits);
  EXPECT_EQ(got.ids, (Ids{2, 5, 6}));
  expect_near(got.weights, {0.548502207F, 0.490576625F, 0.460921168F});
}

TEST(Router, GptOssSoftmaxOverThePicks) {
  RouterConfig config = config_of(8, 3);
  config.softmax_after_top_k = true;
  for (const bool renormalize : {false, true}) {
    config.renormalize = renormalize;
    const Routed got = route(config, kLogits);
    EXPECT_EQ(got.ids, (Ids{2, 5, 6}));
    expect_near(got.weights, {0.481024265F, 0.291755974F, 0.227219775F});
  }
}

// R11: zero experts return their input: they cost no expert work, and weight x input is added once,
//     on the token's own rank.
// B8: a mistake made elsewhere: zero experts told apart by a number that includes replicas; an
//     unknown kind goes on with unset results.
// B9: a mistake made elsewhere: a masked pick becomes id 0 with weight 0: work and load for expert
//     0.
TEST(Router, LongcatZeroExperts) {
  RouterConfig config = config_of(6, 4);
  config.num_zero_experts = 2;
  config.renormalize = false;
  config.routed_scaling_factor = 6.0F;
  config.selection_bias = {0.0F, 0.0F, -0.5F, 0.1F, 0.0F, 0.0F, 0.0F, 0.3F};
  const Routed got = route(config, kLogits);
  EXPECT_EQ(got.ids,
            (Ids{-1, 5, 3, -1}));  // never id 0 with weight 0: that would be work for expert 0
  expect_near(got.weights, {0.0F, 1.334154963F, 0.630210221F, 0.0F}, 4e-6F);
  expect_near(got.identity, {1.079328895F}, 4e-6F);
}

TEST(Router, ZeroExpertsCountInTheRenormalisation) {
  RouterConfig config = config_of(2, 2);
  config.num_zero_experts = 1;
  const Routed got = route(config, {1.0F, 0.0F, 1.0F});
  EXPECT_EQ(got.ids, (Ids{0, -1}));
  expect_near(got.weights, {0.5F, 0.0F});
  expect_near(got.identity, {0.5F});
}

TEST(Router, TokensWithAndWithoutZeroExpertsStandOnTheirOwn) {
  RouterConfig config = config_of(2, 1);
  config.num_zero_experts = 2;
  const Routed got = route(config, {5, 0, 0, 0, 0, 0, 5, 0, 0, 5, 0, 0, 0, 0, 0, 5});
  EXPECT_EQ(got.ids, (Ids{0, -1, 1, -1}));
  EXPECT_EQ(got.weights, (Weights{1, 0, 1, 0}));
  EXPECT_EQ(got.identity, (Weights{0, 1, 0, 1}));
}

TEST(Router, IdentityIsZeroWithoutZeroExperts) {
  EXPECT_EQ(route(config_of(2, 1), {1, 2, 3, 4}).identity, (Weights{0, 0}));
}

TEST(Router, SumOfTwoAndMaximumKeepDifferentGroups) {
  RouterConfig config = config_of(6, 2);
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 2;
  config.top_groups = 1;
  // Group 0 has the best expert, group 1 the best pair.
  const std::vector<float> logits = {3.0F, -3.0F, -3.0F, 2.0F, 1.0F, 2.5F};
  EXPECT_EQ(route(config, logits).ids, (Ids{0, 1}));
  config.group_score = GroupScore::kTop2Sum;
  EXPECT_EQ(route(config, logits).ids, (Ids{5, 3}));
}

TEST(Router, GroupsAreRankedByBiasedScores) {
  for (const GroupScore kind : {GroupScore::kMax, GroupScore::kTop2Sum}) {
    RouterConfig config = config_of(4, 1);
    config.num_groups = 2;
    config.top_groups = 1;
    config.group_score = kind;
    config.selection_bias = {0.0F, 0.0F, 0.0F, 5.0F};
    EXPECT_EQ(route(config, {9.0F, 9.0F, 0.0F, 0.0F}).ids, (Ids{3}));
  }
}

// R6: experts of dropped groups stay out however low the kept scores are.
TEST(Router, DroppedGroupsStayOutWhenKeptScoresAreNegative) {
  RouterConfig config = config_of(4, 2);
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 2;
  config.top_groups = 1;
  config.selection_bias = {-3.0F, -4.0F, -5.0F, -6.0F};
  const Routed got = route(config, std::vector<float>(4, 0.0F));
  EXPECT_EQ(got.ids, (Ids{0, 1}));  // a mask of 0.0 would have let 2 and 3 win
  EXPECT_EQ(got.weights, (Weights{0.5F, 0.5F}));
}

TEST(Router, BiasSelectsAlsoWithoutGroups) {
  RouterConfig config = config_of(3, 1);
  config.scoring = Scoring::kSigmoid;
  config.renormalize = false;
  config.selection_bias = {0.0F, 0.0F, 1.0F};
  const Routed got = route(config, {2.0F, 1.0F, 0.0F});
  EXPECT_EQ(got.ids, (Ids{2}));
  EXPECT_EQ(got.weights, (Weights{0.5F}));  // not 1.5
}

TEST(Router, AZeroBiasChangesNothing) {
  RouterConfig config = config_of(8, 3);
  const Routed plain = route(config, kLogits);
  config.selection_bias.assign(8, 0.0F);
  const Routed biased = route(config, kLogits);
  EXPECT_EQ(plain.ids, biased.ids);
  EXPECT_EQ(plain.weights, biased.weights);
}

TEST(Router, TiesGoToTheLowerId) {
  const std::vector<float> level(8, 1.5F);
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus}) {
    RouterConfig config = config_of(8, 3);
    config.scoring = scoring;
    EXPECT_EQ(route(config, level).ids, (Ids{0, 1, 2}));
    config.num_groups = 4;
    config.top_groups = 2;
    EXPECT_EQ(route(config, level).ids, (Ids{0, 1, 2}));
    config.group_score = GroupScore::kTop2Sum;
    EXPECT_EQ(route(config, level).ids, (Ids{0, 1, 2}));
  }
  RouterConfig config = config_of(8, 3);
  config.softmax_after_top_k = true;
  EXPECT_EQ(route(config, level).ids, (Ids{0, 1, 2}));
  // Two groups tie behind the best one; the ids of the picks still tie in order.
  config = config_of(6, 3);
  config.num_groups = 3;
  config.top_groups = 2;
  EXPECT_EQ(route(config, {1, 0, 1, 0, 2, 1}).ids, (Ids{4, 0, 5}));
}

// R10: the scaling factor is applied exactly once on every path.
TEST(Router, ScalingHappensOnceOnEveryPath) {
  const auto ratio_is_exact = [](RouterConfig config, const RouteInputs& inputs = {}) {
    const std::vector<float> logits =
        random_logits(5, config.num_experts + config.num_zero_experts, 3);
    const Routed one = route(config, logits, inputs);
    config.routed_scaling_factor = 4.0F;  // a power of two: exact
    const Routed four = route(config, logits, inputs);
    EXPECT_EQ(one.ids, four.ids);
    ASSERT_EQ(one.weights.size(), four.weights.size());
    for (size_t i = 0; i < one.weights.size(); ++i)
      EXPECT_EQ(4.0F * one.weights[i], four.weights[i]);
    for (size_t i = 0; i < one.identity.size(); ++i)
      EXPECT_EQ(4.0F * one.identity[i], four.identity[i]);
  };
  for (const bool renormalize : {false, true}) {
    RouterConfig plain = config_of(8, 3);
    plain.renormalize = renormalize;
    ratio_is_exact(plain);
    RouterConfig config = plain;
    config.selection_bias.assign(8, 0.25F);
    ratio_is_exact(config);
    config.num_groups = 2;
    ratio_is_exact(config);
    config = plain;
    config.softmax_after_top_k = true;
    ratio_is_exact(config);
    config = plain;
    config.num_zero_experts = 4;
    ratio_is_exact(config);
    config = plain;
    config.force_balance = true;
    ratio_is_exact(config);
    config = plain;
    config.hash_table = {0, 1, 2, 5, 6, 7};
    const Ids tokens = {0, 1, 1, 0, -1};
    ratio_is_exact(config, {.token_ids = tokens});
    config = plain;
    config.custom = [](ConstRows, ConstRows, int, bool, int, std::span<int32_t> ids,
                       std::span<float> weights) {
      std::fill(ids.begin(), ids.end(), 1);
      std::fill(weights.begin(), weights.end(), 0.3F);
    };
    ratio_is_exact(config);
  }
}

// R7: all-zero weights do not become NaN by renormalising.
TEST(Router, AllZeroWeightsStayZero) {
  RouterConfig config = config_of(3, 2);
  config.scoring = Scoring::kSigmoid;
  const Routed got = route(config, {-500.0F, -500.0F, -500.0F});
  EXPECT_EQ(got.ids, (Ids{0, 1}));
  EXPECT_EQ(got.weights, (Weights{0.0F, 0.0F}));
}

TEST(Router, InfiniteLogits) {
  RouterConfig config = config_of(4, 2);
  Routed got = route(config, {1.0F, kInf, -kInf, kInf});
  EXPECT_EQ(got.ids, (Ids{1, 3}));
  EXPECT_EQ(got.weights, (Weights{0.5F, 0.5F}));
  got = route(config, std::vector<float>(4, -kInf));
  EXPECT_EQ(got.ids, (Ids{0, 1}));
  EXPECT_EQ(got.weights, (Weights{0.5F, 0.5F}));
  config.scoring = Scoring::kSqrtSoftplus;
  got = route(config, {kInf, 1.0F, 2.0F, kInf});
  EXPECT_EQ(got.ids, (Ids{0, 3}));
  EXPECT_EQ(got.weights, (Weights{0.5F, 0.5F}));
  config.scoring = Scoring::kSigmoid;
  got = route(config, {-kInf, -kInf, kInf, -kInf});
  EXPECT_EQ(got.ids, (Ids{2, 0}));
  EXPECT_EQ(got.weights, (Weights{1.0F, 0.0F}));
  config.scoring = Scoring::kSoftmax;
  config.softmax_after_top_k = true;
  got = route(config, {-kInf, -kInf, 5.0F, -kInf});
  EXPECT_EQ(got.ids, (Ids{2, 0}));
  EXPECT_EQ(got.weights, (Weights{1.0F, 0.0F}));
}

TEST(Router, NanNamesLayerTokenAndExpertOnEveryPath) {
  std::vector<float> logits(24, 0.0F);
  logits[2 * 8 + 5] = kNan;
  logits[2 * 8 + 7] = -kNan;
  const auto expect_named = [&](const RouterConfig& config, RouteInputs inputs = {}) {
    inputs.layer = 7;
    const std::string text = refusal([&] { route(config, logits, inputs); });
    EXPECT_NE(text.find("token 2"), std::string::npos) << text;
    EXPECT_NE(text.find("expert 5"), std::string::npos) << text;
    EXPECT_NE(text.find("layer 7"), std::string::npos) << text;
  };
  RouterConfig config = config_of(8, 2);
  expect_named(config);
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 4;
  expect_named(config);
  config = config_of(8, 2);
  config.softmax_after_top_k = true;
  expect_named(config);
  config = config_of(6, 2);
  config.num_zero_experts = 2;
  expect_named(config);
  config = config_of(8, 2);
  config.hash_table = {0, 1};
  const Ids tokens(3, 0);
  expect_named(config, {.token_ids = tokens});
  config = config_of(8, 2);
  config.custom = [](ConstRows, ConstRows, int, bool, int, std::span<int32_t>, std::span<float>) {
    FAIL();
  };
  expect_named(config);
}

TEST(Router, NanIsFoundInEveryColumnOfEveryToken) {
  for (size_t at = 0; at < 24; ++at) {
    std::vector<float> logits(24, 0.0F);
    logits[at] = kNan;
    EXPECT_EQ(refusal([&] { route(config_of(8, 2), logits); }),
              "router: the logit of token " + std::to_string(at / 8) + " for expert " +
                  std::to_string(at % 8) + " is NaN (layer 0)");
  }
}

// R17: edges: no tokens, one pick, all picks; a NaN logit is a typed error that names token and
//     expert.
TEST(Router, NoTokens) {
  RouterConfig config = config_of(8, 2);
  config.num_zero_experts = 1;
  config.num_appended_experts = 0;
  int calls = 0;
  const Capture capture = [&](int, int64_t, int, std::span<const int32_t> ids) {
    ++calls;
    EXPECT_TRUE(ids.empty());
  };
  const Routed got = route(config, {}, {.capture = &capture});
  EXPECT_TRUE(got.ids.empty() && got.weights.empty() && got.identity.empty());
  EXPECT_EQ(calls, 1);
}

TEST(Router, OnePickAndAllPicks) {
  Routed got = route(config_of(8, 1), kLogits);
  EXPECT_EQ(got.ids, (Ids{2}));
  EXPECT_EQ(got.weights, (Weights{1.0F}));
  got = route(config_of(8, 8), kLogits);
  EXPECT_EQ(got.ids, (Ids{2, 5, 6, 3, 0, 4, 1, 7}));
  EXPECT_NEAR(std::accumulate(got.weights.begin(), got.weights.end(), 0.0F), 1.0F, 1e-6F);
  got = route(config_of(1, 1), {-3.0F, 4.0F});
  EXPECT_EQ(got.ids, (Ids{0, 0}));
  EXPECT_EQ(got.weights, (Weights{1.0F, 1.0F}));
  RouterConfig most = config_of(RouterConfig::kMaxExperts, RouterConfig::kMaxExperts);
  got = route(most, random_logits(1, RouterConfig::kMaxExperts, 1));
  std::sort(got.ids.begin(), got.ids.end());
  for (int32_t i = 0; i < RouterConfig::kMaxExperts; ++i) ASSERT_EQ(got.ids[i], i);
}

TEST(Router, WrongShapesAreRefused) {
  const Router router(config_of(8, 2));
  std::vector<float> logits(3 * 9);
  Ids ids(6);
  Weights weights(6);
  Weights identity(3);
  const auto text = [&](ConstRows rows, Routing out, const RouteInputs& inputs = {}) {
    return refusal([&] { router.route(rows, inputs, out); });
  };
  const ConstRows good(logits.data(), 3, 8);
  const std::span<int32_t> all_ids = ids;
  const std::span<float> all_weights = weights;
  EXPECT_EQ(text(good, {all_ids, all_weights, identity}), "");
  EXPECT_EQ(text(good, {all_ids, all_weights}), "");
  EXPECT_NE(text({logits.data(), 3, 9}, {all_ids, all_weights}).find("[3, 9]"), std::string::npos);
  EXPECT_NE(text({logits.data(), 3, 7}, {all_ids, all_weights}).find("[tokens, 8]"),
            std::string::npos);
  EXPECT_NE(text(good, {all_ids.first(4), all_weights}).find("ids has 4"), std::string::npos);
  EXPECT_NE(text(good, {all_ids, all_weights.first(5)}).find("weights has 5"), std::string::npos);
  const std::span<float> two = std::span(identity).first(2);
  EXPECT_NE(text(good, {all_ids, all_weights, two}).find("identity has 2"), std::string::npos);
  std::vector<bf16_t> narrow(24);
  EXPECT_NE(text({narrow.data(), 3, 8}, {all_ids, all_weights}).find("BF16"), std::string::npos);
  ConstRows overlapping = good;
  overlapping.stride = 7;
  EXPECT_NE(text(overlapping, {all_ids, all_weights}).find("stride 7"), std::string::npos);

  RouterConfig zero = config_of(7, 2);
  zero.num_zero_experts = 1;
  EXPECT_NE(
      refusal([&] { Router(zero).route(good, {}, {all_ids, all_weights}); }).find("identity has 0"),
      std::string::npos);
}

TEST(Router, RowsMayHaveAStride) {
  const std::vector<float> logits = {1, 2, kNan, 4, 3, kNan};
  ConstRows rows(logits.data(), 2, 2);
  rows.stride = 3;
  Ids ids(2);
  Weights weights(2);
  Router(config_of(2, 1)).route(rows, {}, {ids, weights});
  EXPECT_EQ(ids, (Ids{1, 0}));
}

}  // namespace
}  // namespace trimtab
