// SPDX-License-Identifier: Apache-2.0
// Capture, appended experts, forced balance, hash tables and custom functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "router/router_testing.h"

namespace trimtab {
namespace {

using Ids = std::vector<int32_t>;
using Weights = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<float> kLogits = {0.5F, -1.25F, 2.0F, 0.75F, -0.5F, 1.5F, 1.25F, -2.0F};

// R13: capture: what was selected, as logical ids of the rank's own tokens, at their place in the
//     step.
TEST(Router, CaptureSeesWhatWasSelected) {
  RouterConfig config = config_of(6, 4);
  config.num_zero_experts = 2;
  config.selection_bias = {0.0F, 0.0F, -0.5F, 0.1F, 0.0F, 0.0F, 0.0F, 0.3F};
  config.force_balance = true;
  struct {
    int layer = 0, top_k = 0, calls = 0;
    int64_t first = 0;
    Ids ids;
  } seen;
  const Capture capture = [&](int layer, int64_t first, int top_k, std::span<const int32_t> ids) {
    seen = {layer, top_k, seen.calls + 1, first, Ids(ids.begin(), ids.end())};
  };
  route(config, kLogits, {.capture = &capture, .layer = 7, .first_token = 40});
  EXPECT_EQ(seen.ids, (Ids{7, 5, 3, 6}));
  EXPECT_EQ(seen.layer, 7);
  EXPECT_EQ(seen.first, 40);
  EXPECT_EQ(seen.top_k, 4);
  EXPECT_EQ(seen.calls, 1);
  const Capture nobody;
  EXPECT_EQ(refusal([&] { route(config, kLogits, {.capture = &nobody}); }), "");
}

// R14: shared experts placed like routed ones: extra ids with weight 1 behind the picks; nothing
//     assumes that picks = configured top-k.
// B17: a mistake made elsewhere: the configured top-k used in place of the number of picks.
TEST(Router, AppendedExpertsFollowThePicks) {
  RouterConfig config = config_of(4, 2);
  config.num_appended_experts = 2;
  config.routed_scaling_factor = 8.0F;
  config.renormalize = false;
  config.scoring = Scoring::kSigmoid;
  Ids captured;
  const Capture capture = [&](int, int64_t, int top_k, std::span<const int32_t> ids) {
    EXPECT_EQ(top_k, 2);
    captured.assign(ids.begin(), ids.end());
  };
  EXPECT_EQ(Router(config).picks_per_token(), 4);
  const Routed got =
      route(config, {0, 500, -1, -2, 500, 0, -1, -2, -1, -2, 500, 0}, {.capture = &capture});
  EXPECT_EQ(captured, (Ids{1, 0, 0, 1, 2, 3}));
  EXPECT_EQ(got.ids, (Ids{1, 0, 4, 5, 0, 1, 4, 5, 2, 3, 4, 5}));
  EXPECT_EQ(got.weights, (Weights{8, 4, 1, 1, 8, 4, 1, 1, 8, 4, 1, 1}));
  config.force_balance = true;
  const Routed forced = route(config, {0, 500, -1, -2});
  EXPECT_LT(std::max(forced.ids[0], forced.ids[1]), 4);
  EXPECT_EQ(forced.ids[2], 4);
  EXPECT_EQ(forced.ids[3], 5);
}

// R13: replay: what was captured, in a run whose scores differ: its ids, this run's weights.
TEST(Router, CapturedPicksCanBeReplayed) {
  RouterConfig grouped = config_of(12, 3);
  grouped.scoring = Scoring::kSigmoid;
  grouped.num_groups = 4;
  grouped.top_groups = 2;
  grouped.selection_bias.assign(12, 0.25F);
  RouterConfig zero = config_of(10, 3);
  zero.num_zero_experts = 2;
  RouterConfig after = config_of(12, 3);
  after.softmax_after_top_k = true;
  const std::vector<float> logits = random_logits(40, 12, 5), others = random_logits(40, 12, 6);
  for (const RouterConfig& config : {grouped, zero, after}) {
    std::vector<int32_t> captured;
    const Capture capture = [&](int, int64_t, int, std::span<const int32_t> ids) {
      captured.assign(ids.begin(), ids.end());
    };
    const Routed first = route(config, logits, {.capture = &capture});
    // The same scores: nothing changes.
    const Routed same = route(config, logits, {.picks = captured});
    EXPECT_EQ(same.ids, first.ids);
    EXPECT_EQ(same.weights, first.weights);
    EXPECT_EQ(same.identity, first.identity);
    const Routed replayed = route(config, others, {.picks = captured});
    EXPECT_EQ(replayed.ids, first.ids);
    for (size_t t = 0; t < 40; ++t) {
      // Softmax over all experts or over the picks alone: renormalised it is the same.
      const auto score = [&](size_t k) {
        const double x = others[t * 12 + static_cast<size_t>(captured[t * 3 + k])];
        return config.scoring == Scoring::kSigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x);
      };
      const double sum = score(0) + score(1) + score(2);
      double zeros = 0;
      for (size_t k = 0; k < 3; ++k) {
        const bool is_zero = captured[t * 3 + k] >= config.num_experts;
        if (is_zero) zeros += score(k) / sum;
        EXPECT_NEAR(replayed.weights[t * 3 + k], is_zero ? 0.0 : score(k) / sum, 1e-6);
      }
      EXPECT_NEAR(replayed.identity[t], zeros, 1e-6);
    }
  }
  // A token without picks is routed.
  const Routed own = route(after, logits, {});
  std::vector<int32_t> picks(40 * 3, 1);
  std::ranges::fill(std::span(picks).subspan(12, 3), -1);
  const Routed mixed = route(after, logits, {.picks = picks});
  for (size_t i = 0; i < picks.size(); ++i)
    EXPECT_EQ(mixed.ids[i], i / 3 == 4 ? own.ids[i] : 1) << "pick " << i;
  picks[7] = 12;
  const auto message = [&](std::span<const int32_t> given) {
    return refusal([&] { route(after, logits, {.picks = given}); });
  };
  EXPECT_NE(message(picks).find("token 2 are not all in [0, 12)"), std::string::npos);
  EXPECT_NE(message(std::span(picks).first(3)).find("picks has 3 elements"), std::string::npos);
  RouterConfig custom = after;
  custom.softmax_after_top_k = false;
  custom.custom = [](ConstRows, ConstRows, int, bool, int, std::span<int32_t>, std::span<float>) {};
  EXPECT_NE(refusal([&] {
              route(custom, logits, {.picks = std::span(picks).first(120)});
            }).find("can't be replayed"),
            std::string::npos);
}

RouterConfig moge(int experts, int groups, int top_k) {
  RouterConfig config = config_of(experts, top_k);
  config.num_groups = config.top_groups = groups;
  config.picks_in_every_group = true;
  return config;
}

// D4: MoGE chooses per group; ids come best first all the same, equal ones by id.
TEST(Router, PicksInEveryGroup) {
  RouterConfig config = moge(6, 2, 2);
  config.renormalize = false;
  config.scoring = Scoring::kSigmoid;
  const Routed one = route(config, {3, 2, 1, -4, -3, -5, /**/ 0, 1, 0, 1, 0, 0});
  EXPECT_EQ(one.ids, (Ids{0, 4, /**/ 1, 3}));
  expect_near(one.weights, {0.9525741F, 0.0474259F, /**/ 0.7310586F, 0.7310586F});
  config.top_k = 4;
  config.num_appended_experts = 1;
  EXPECT_EQ(route(config, {3, 2, 1, -4, -3, -5}).ids, (Ids{0, 1, 4, 3, 6}));
}

// R13: replayed picks must be in every group as well.
TEST(Router, ReplayedPicksAreInEveryGroup) {
  const RouterConfig config = moge(6, 2, 2);
  const std::vector<float> logits = random_logits(2, 6, 3);
  EXPECT_EQ(route(config, logits, {.picks = Ids{5, 0, -1, -1}}).ids[0], 5);
  EXPECT_NE(refusal([&] {
              route(config, logits, {.picks = Ids{5, 0, 1, 2}});
            }).find("token 1 are not all in [0, 6), as many in every group"),
            std::string::npos);
}

// R12: a profile run of MoGE has as many rows in every group, each expert equally often.
TEST(ForcedBalance, InEveryGroup) {
  constexpr size_t kTokens = 4000, kPicks = 6;
  RouterConfig config = moge(12, 3, kPicks);
  const std::vector<float> logits = random_logits(kTokens, 12, 5);
  const Routed plain = route(config, logits);
  config.force_balance = true;
  const Routed forced = route(config, logits);
  EXPECT_EQ(plain.weights, forced.weights);
  std::vector<int> counts(12);
  bool alike = true;
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<int> of_group(3);
    const std::span<const int32_t> ids(&forced.ids[t * kPicks], kPicks);
    for (const int32_t id : ids) ++of_group[static_cast<size_t>(id / 4)], ++counts[id];
    ASSERT_EQ(of_group, (std::vector<int>{2, 2, 2})) << "token " << t;
    ASSERT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), kPicks);
    alike &= ids[0] % 4 == ids[2] % 4 && ids[1] % 4 == ids[3] % 4;
  }
  EXPECT_FALSE(alike) << "the groups get the same draws";
  // 2000 each, standard deviation 32.
  for (const int c : counts) EXPECT_NEAR(c, 2000, 6 * 32);
}

// R12: forced balance for profile runs: random distinct logical experts, weights as routed; never
//     recorded as load.
// B10: a mistake made elsewhere: forced balance draws ids beyond the logical experts, or twice the
//     same; on by default.
TEST(ForcedBalance, DistinctLogicalIdsWithTheRoutedWeights) {
  RouterConfig config = config_of(60, 6);
  config.num_zero_experts = 8;
  const std::vector<float> logits = random_logits(4000, 68, 5);
  const Routed plain = route(config, logits);
  config.force_balance = true;
  const Routed forced = route(config, logits);
  EXPECT_EQ(plain.weights, forced.weights);
  EXPECT_EQ(plain.identity, forced.identity);
  std::vector<int> counts(60);
  for (size_t t = 0; t < 4000; ++t) {
    const std::set<int32_t> distinct(&forced.ids[t * 6], &forced.ids[t * 6] + 6);
    ASSERT_EQ(distinct.size(), 6U) << "token " << t;
    ASSERT_GE(*distinct.begin(), 0);
    ASSERT_LT(*distinct.rbegin(), 60);
    for (const int32_t id : distinct) ++counts[id];
  }
  // 400 each, standard deviation 19: six of them at most.
  for (const int c : counts) EXPECT_NEAR(c, 400, 6 * 19);
}

TEST(ForcedBalance, DependsOnSeedLayerAndTokenOnly) {
  RouterConfig config = config_of(64, 4);
  config.force_balance = true;
  config.force_balance_seed = 9;
  const Routed whole = route(config, random_logits(10, 64, 1), {.layer = 2, .first_token = 100});
  const Routed tail = route(config, random_logits(6, 64, 2), {.layer = 2, .first_token = 104});
  EXPECT_EQ(Ids(whole.ids.begin() + 16, whole.ids.end()), tail.ids);
  EXPECT_NE(whole.ids,
            route(config, random_logits(10, 64, 1), {.layer = 3, .first_token = 100}).ids);
  config.force_balance_seed = 10;
  EXPECT_NE(whole.ids,
            route(config, random_logits(10, 64, 1), {.layer = 2, .first_token = 100}).ids);
}

TEST(ForcedBalance, EverySetIsEquallyLikely) {
  RouterConfig config = config_of(4, 2);
  config.force_balance = true;
  const Routed got = route(config, std::vector<float>(4 * 60000, 0.0F));
  std::map<std::set<int32_t>, int> counts;
  for (size_t t = 0; t < 60000; ++t) ++counts[{got.ids[2 * t], got.ids[2 * t + 1]}];
  ASSERT_EQ(counts.size(), 6U);
  for (const auto& [ids, count] : counts)
    EXPECT_NEAR(count, 10000, 6 * 92);  // six standard deviations
}

TEST(ForcedBalance, AllExperts) {
  RouterConfig config = config_of(5, 5);
  config.force_balance = true;
  const Routed got = route(config, random_logits(20, 5, 1));
  for (size_t t = 0; t < 20; ++t) {
    EXPECT_EQ(std::set<int32_t>(&got.ids[t * 5], &got.ids[t * 5] + 5),
              (std::set<int32_t>{0, 1, 2, 3, 4}));
  }
}

// R9: experts chosen from a table by token id, weights from the scores; padding tokens count as
//     token 0.
TEST(HashRouting, IdsFromTheTableWeightsFromTheScores) {
  RouterConfig config = config_of(4, 2);
  config.scoring = Scoring::kSqrtSoftplus;
  config.hash_table = {3, 0, 1, 2, 2, 2};
  config.routed_scaling_factor = 1.5F;
  const std::vector<float> row = {0.5F, 2.0F, -1.0F, 0.0F};
  std::vector<float> logits;
  for (int i = 0; i < 4; ++i) logits.insert(logits.end(), row.begin(), row.end());
  const Ids tokens = {1, 0, -1, 2};
  const Routed got = route(config, logits, {.token_ids = tokens});
  EXPECT_EQ(got.ids, (Ids{1, 2, 3, 0, 3, 0, 2, 2}));
  // sqrt(softplus): 0.5 -> 0.98693, 2 -> 1.458394, -1 -> 0.559690, 0 -> 0.832555
  const Weights first = {1.0839993F, 0.4160007F};
  const Weights second = {0.6863652F, 0.8136348F};
  expect_near(got.weights,
              {first[0], first[1], second[0], second[1], second[0], second[1], 0.75F, 0.75F},
              1e-5F);
}

TEST(HashRouting, TokenIdsAreChecked) {
  RouterConfig config = config_of(4, 2);
  config.hash_table = {3, 0, 1, 2};
  const std::vector<float> logits(8, 0.0F);
  const auto text = [&](const Ids& tokens) {
    return refusal([&] { route(config, logits, {.token_ids = tokens}); });
  };
  EXPECT_EQ(text({0, 1}), "");
  EXPECT_NE(text({0, 2}).find("token 1 has the id 2"), std::string::npos);
  EXPECT_NE(text({-2, 0}).find("token 0 has the id -2"), std::string::npos);
  EXPECT_NE(text({0}).find("token_ids has 1"), std::string::npos);
  EXPECT_NE(text({}).find("token_ids has 0"), std::string::npos);
}

// R8: a function of the caller's replaces scoring and selection.
TEST(CustomRouting, GetsTheInputsAndIsChecked) {
  RouterConfig config = config_of(4, 2);
  config.num_zero_experts = 1;
  config.renormalize = false;
  const std::vector<float> hidden = {1, 2, 3};
  std::vector<int32_t> ids = {4, 2};
  std::vector<float> weights = {0.75F, 0.5F};
  int calls = 0;
  config.custom = [&](ConstRows h, ConstRows logits, int top_k, bool renormalize, int experts,
                      std::span<int32_t> out_ids, std::span<float> out_weights) {
    ++calls;
    EXPECT_EQ(reinterpret_cast<const float*>(h.data), hidden.data());
    EXPECT_EQ(logits.rows, 1);
    EXPECT_EQ(logits.cols, 5);
    EXPECT_EQ(top_k, 2);
    EXPECT_FALSE(renormalize);
    EXPECT_EQ(experts, 4);
    std::copy(ids.begin(), ids.end(), out_ids.begin());
    std::copy(weights.begin(), weights.end(), out_weights.begin());
  };
  const RouteInputs inputs = {.hidden = ConstRows(hidden.data(), 1, 3)};
  const std::vector<float> logits(5, 0.0F);
  Routed got = route(config, logits, inputs);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(got.ids, (Ids{-1, 2}));
  EXPECT_EQ(got.weights, (Weights{0.0F, 0.5F}));
  EXPECT_EQ(got.identity, (Weights{0.75F}));

  ids = {-1, 3};
  got = route(config, logits, inputs);
  EXPECT_EQ(got.ids, (Ids{-1, 3}));
  EXPECT_EQ(got.weights, (Weights{0.0F, 0.5F}));
  EXPECT_EQ(got.identity, (Weights{0.0F}));  // nobody is no zero expert

  const auto text = [&] { return refusal([&] { route(config, logits, inputs); }); };
  ids = {0, 5};
  EXPECT_NE(text().find("token 0 expert 5 of 5"), std::string::npos) << text();
  ids = {-2, 1};
  EXPECT_NE(text().find("expert -2"), std::string::npos);
  ids = {0, 1};
  weights[1] = kNan;
  EXPECT_NE(text().find("expert 1 of 5 with weight nan"), std::string::npos);
}

}  // namespace
}  // namespace trimtab
