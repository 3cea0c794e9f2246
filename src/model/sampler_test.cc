// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Sampler, TiesGoToTheLowerId) {
  EXPECT_EQ(most_likely(std::vector{0.5F, 2.0F, -1.0F, 2.0F}), 1);
  EXPECT_EQ(most_likely(std::vector{kNan, -3.0F, kNan}), 1);
  EXPECT_THROW(most_likely(std::vector{kNan, -kInfinity}), InvalidArgument);
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, -kInfinity, 2.0F, kNan};
  const double temperature = 0.8;
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size());
  for (uint64_t i = 0; i < kDraws; ++i) {
    ++counts[sample(logits, Sampling{.temperature = 0.8F}, 3, i / 200, i % 200)];
  }
  const double total = 1.0 + std::exp(1 / temperature) + std::exp(2 / temperature);
  for (const size_t id : {0U, 1U, 3U}) {
    const double p = std::exp(double{logits[id]} / temperature) / total;
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(counts[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << id;
  }
  EXPECT_EQ(counts[2] + counts[4], 0);
}

TEST(Sampler, ALowTemperatureIsGreedy) {
  const std::vector<float> logits = {0.0F, 1.0F, 1.5F, 1.25F};
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample(logits, Sampling{.temperature = 1e-3F}, 1, 2, i), 2);
  }
}

// The probabilities that are left of the softmax, by sorting all tokens for each filter.
std::vector<double> filtered(std::vector<float> logits, const Sampling& how) {
  std::vector<double> p;
  for (const float logit : logits) p.push_back(std::exp(double{logit} / how.temperature));
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= total;
  };
  const auto keep_from = [&](double least) {
    for (double& value : p) value = value < least ? 0 : value;
    normalise();
  };
  const auto sorted = [&] {
    std::vector<double> order = p;
    std::ranges::sort(order, std::greater());
    return order;
  };
  normalise();
  if (how.top_k > 0 && how.top_k < std::ssize(p)) keep_from(sorted()[how.top_k - 1]);
  double sum = 0;
  for (const double value : sorted()) {
    sum += value;
    if (sum < how.top_p) continue;
    keep_from(value);
    break;
  }
  keep_from(how.min_p * sorted()[0]);
  return p;
}

TEST(Sampler, FiltersKeepWhatTheirDefinitionsKeep) {
  const std::vector<float> logits = {0.3F, 1.1F, -2.0F, 2.0F, 0.9F, 1.1F, -0.4F, 1.7F};
  constexpr int kDraws = 20000;
  for (const Sampling& how :
       std::vector<Sampling>{{.temperature = 1.0F, .top_k = 3},  // two tokens are level at the edge
                             {.temperature = 1.0F, .top_k = 100},
                             {.temperature = 0.7F, .top_p = 0.8F},
                             {.temperature = 1.5F, .top_p = 0.05F},
                             {.temperature = 1.0F, .min_p = 0.3F},
                             {.temperature = 1.2F, .top_k = 5, .top_p = 0.75F, .min_p = 0.35F}}) {
    const std::vector<double> expected = filtered(logits, how);
    std::vector<int> counts(logits.size());
    for (uint64_t i = 0; i < kDraws; ++i) ++counts[sample(logits, how, 7, i / 100, i % 100)];
    for (size_t id = 0; id < logits.size(); ++id) {
      const double p = expected[id];
      EXPECT_NEAR(counts[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)))
          << id << ", top_k " << how.top_k << ", top_p " << how.top_p << ", min_p " << how.min_p;
    }
  }
}

TEST(Sampler, FiltersNeverTakeWhatIsNoNumber) {
  std::vector<float> logits(300, kNan);
  logits[7] = 1.0F;
  logits[200] = 0.5F;
  for (uint64_t i = 0; i < 200; ++i) {
    const int32_t id =
        sample(logits, Sampling{.temperature = 2.0F, .top_k = 40, .top_p = 0.99F}, 1, 2, i);
    EXPECT_TRUE(id == 7 || id == 200) << id;
  }
}

}  // namespace
}  // namespace trimtab
