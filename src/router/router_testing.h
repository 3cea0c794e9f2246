// SPDX-License-Identifier: Apache-2.0
// For the router's tests: one call with owned outputs.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/router.h"
#include "trimtab/table.h"

namespace trimtab {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<float> identity;
};

// logits: [tokens, num_experts + num_zero_experts]. Outputs start as rubbish, so that what is not
// written shows.
inline Routed route(const RouterConfig& config, const std::vector<float>& logits,
                    const RouteInputs& inputs = {}) {
  const Router router(config);
  const int64_t columns = config.num_experts + config.num_zero_experts;
  const int64_t tokens = std::ssize(logits) / columns;
  const size_t picks = cells(tokens, router.picks_per_token());
  Routed out{std::vector<int32_t>(picks, -99), std::vector<float>(picks, -99.0F),
             std::vector<float>(tokens, -99.0F)};
  router.route({logits.data(), tokens, columns}, inputs, {out.ids, out.weights, out.identity});
  return out;
}

// The text of the InvalidArgument that body throws; "" when it does not.
template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

inline RouterConfig config_of(int experts, int top_k) {
  RouterConfig config;
  config.num_experts = experts;
  config.top_k = top_k;
  return config;
}

inline std::vector<float> random_logits(int64_t tokens, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> logits(cells(tokens, columns));
  for (float& x : logits) x = normal(random);
  return logits;
}

inline void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                        float tolerance = 2e-6F) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << "at " << i;
}

}  // namespace trimtab
