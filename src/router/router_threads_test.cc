// SPDX-License-Identifier: Apache-2.0
// What route() must not do: allocate, or depend on threads and slices.
#include <gtest/gtest.h>

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
  for (const RouterConfig& config : {grouped, zero, hash}) {
    const Router router(config);
    const int64_t before = allocation_count();
    router.route({logits.data(), 64, 64}, {.token_ids = tokens}, {ids, weights, identity});
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

}  // namespace
}  // namespace trimtab
