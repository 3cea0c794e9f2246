// SPDX-License-Identifier: Apache-2.0
// What route() must not do: allocate, or depend on threads and slices.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <thread>
#include <vector>

#include "base/allocation_count.h"
#include "router/router_testing.h"

namespace trimtab {
namespace {

using Ids = std::vector<int32_t>;
using Weights = std::vector<float>;

TEST(Router, DoesNotAllocate) {
  const std::vector<float> logits = random_logits(64, 64, 8);
  Ids ids(64 * 6);
  Weights weights(64 * 6), identity(64);
  const Ids tokens(64, 0);
  RouterConfig grouped = config_of(64, 4);
  grouped.num_groups = 8;
  grouped.top_groups = 4;
  grouped.selection_bias.resize(64);
  grouped.num_appended_experts = 2;
  RouterConfig zero = config_of(60, 6);
  zero.num_zero_experts = 4;
  zero.force_balance = true;
  RouterConfig hash = config_of(64, 6);
  hash.hash_table = {0, 1, 2, 3, 4, 5};
  Team team(2);
  for (const RouterConfig& config : {grouped, zero, hash}) {
    const Router router(config);
    const int64_t before = allocation_count();
    router.route({logits.data(), 64, 64}, {.token_ids = tokens}, {ids, weights, identity});
    router.route({logits.data(), 64, 64}, {.token_ids = tokens}, {ids, weights, identity}, team);
    EXPECT_EQ(allocation_count(), before);
  }
}

TEST(Router, ThreadsShareOneRouterAndSlicesGiveTheSameBits) {
  RouterConfig config = config_of(64, 6);
  config.scoring = Scoring::kSigmoid;
  config.num_groups = 8;
  config.top_groups = 3;
  config.selection_bias.assign(64, 0.125F);
  const Router router(config);
  const std::vector<float> logits = random_logits(400, 64, 21);
  const Routed whole = route(config, logits);
  Ids ids(400 * 6);
  Weights weights(400 * 6);
  std::vector<std::thread> threads;
  for (size_t part = 0; part < 4; ++part) {
    threads.emplace_back([&, part] {
      const size_t first = part * 100;
      router.route(
          {logits.data() + first * 64, 100, 64}, {.first_token = static_cast<int64_t>(first)},
          {std::span(ids).subspan(first * 6, 600), std::span(weights).subspan(first * 6, 600)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids, whole.ids);
  EXPECT_EQ(weights, whole.weights);
}

// Tokens of a team's batch: more than a member takes at once.
constexpr int64_t kManyTokens = 700;
constexpr int kManyColumns = 64;

std::vector<RouterConfig> every_kind_of_router() {
  RouterConfig grouped = config_of(kManyColumns, 6);
  grouped.scoring = Scoring::kSigmoid;
  grouped.num_groups = 8;
  grouped.top_groups = 3;
  grouped.selection_bias.assign(kManyColumns, 0.125F);
  grouped.num_appended_experts = 2;
  RouterConfig zero = config_of(60, 6);
  zero.num_zero_experts = 4;
  zero.routed_scaling_factor = 2.5F;
  RouterConfig balanced = config_of(kManyColumns, 6);
  balanced.force_balance = true;
  RouterConfig hash = config_of(kManyColumns, 6);
  hash.hash_table = {0, 1, 2, 3, 4, 5, 9, 8, 7, 6, 5, 4};
  RouterConfig custom = config_of(kManyColumns, 6);
  custom.custom = [](ConstRows, ConstRows logits, int top_k, bool, int, std::span<int32_t> ids,
                     std::span<float> weights) {
    for (int64_t pick = 0; pick < logits.rows * top_k; ++pick) {
      ids[pick] = static_cast<int32_t>(pick % kManyColumns);
      weights[pick] = *logits.row_as<float>(pick / top_k);
    }
  };
  return {grouped, zero, balanced, hash, custom};
}

TEST(Router, ATeamGivesTheSameBits) {
  const std::vector<float> logits = random_logits(kManyTokens, kManyColumns, 3);
  const ConstRows rows(logits.data(), kManyTokens, kManyColumns);
  Ids token_ids(kManyTokens);
  for (size_t t = 0; t < token_ids.size(); ++t) token_ids[t] = static_cast<int32_t>(t % 3) - 1;
  for (const RouterConfig& config : every_kind_of_router()) {
    const Router router(config);
    const auto picks = static_cast<size_t>(kManyTokens * router.picks_per_token());
    Ids ids(picks), alone_ids(picks), captured, alone_captured;
    Weights weights(picks), alone_weights(picks), identity(kManyTokens),
        alone_identity(kManyTokens);
    Ids* to = &alone_captured;
    const Capture capture = [&](int, int64_t first, int, std::span<const int32_t> found) {
      EXPECT_EQ(first, 40);
      to->insert(to->end(), found.begin(), found.end());
    };
    const RouteInputs inputs{
        .hidden = {}, .token_ids = token_ids, .capture = &capture, .layer = 1, .first_token = 40};
    router.route(rows, inputs, {alone_ids, alone_weights, alone_identity});
    EXPECT_EQ(std::ssize(alone_captured), kManyTokens * config.top_k);
    for (const int threads : {1, 3}) {
      Team team(threads);
      captured.clear();
      to = &captured;
      router.route(rows, inputs, {ids, weights, identity}, team);
      EXPECT_EQ(ids, alone_ids);
      EXPECT_EQ(weights, alone_weights);
      EXPECT_EQ(identity, alone_identity);
      EXPECT_EQ(captured, alone_captured);
    }
  }
}

// Members come to wrong tokens in any order.
TEST(Router, ATeamNamesTheFirstWrongToken) {
  std::vector<float> logits = random_logits(kManyTokens, kManyColumns, 3);
  for (const int64_t token : {300, 301, 640}) logits[token * kManyColumns + 5] = std::nanf("");
  Ids ids(kManyTokens * 6), token_ids(kManyTokens);
  Weights weights(ids.size());
  Team team(3);
  const auto message = [&](const RouterConfig& config) {
    const Router router(config);
    return refusal([&] {
      router.route({logits.data(), kManyTokens, kManyColumns}, {.token_ids = token_ids},
                   {ids, weights}, team);
    });
  };
  RouterConfig hash = config_of(kManyColumns, 6);
  hash.hash_table = {0, 1, 2, 3, 4, 5};
  for (int round = 0; round < 20; ++round) {
    token_ids[250] = 0;
    EXPECT_NE(message(hash).find("token 300 for expert 5 is NaN"), std::string::npos);
    EXPECT_NE(message(config_of(kManyColumns, 6)).find("token 300 "), std::string::npos);
    token_ids[250] = 1;
    EXPECT_NE(message(hash).find("token 250 has the id 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace trimtab
