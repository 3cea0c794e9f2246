// SPDX-License-Identifier: Apache-2.0
// Random configurations against a slow router written from the definitions: doubles, full sorts,
// one token at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "router/router_testing.h"

namespace trimtab {
namespace {

using Doubles = std::vector<double>;

// A value to sort by, and the size of the numbers it was computed from, which bounds the rounding
// of the f32 router.
struct Ranked {
  int id;
  double value;
  double magnitude;
};

struct Expected {
  std::vector<int> ids;     // as captured
  Doubles weights;          // scaled, zero experts' too
  bool close_call = false;  // two values closer than f32 can tell apart, but not equal
};

// Best first, then the lower id.
std::vector<Ranked> best(std::vector<Ranked> all, size_t k, bool& close_call) {
  std::sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    return a.value != b.value ? a.value > b.value : a.id < b.id;
  });
  for (size_t i = 0; i < k && i + 1 < all.size(); ++i) {
    const double gap = all[i].value - all[i + 1].value;
    close_call |= gap > 0.0 && gap < 2e-6 * std::max(all[i].magnitude, all[i + 1].magnitude);
  }
  all.resize(k);
  return all;
}

Doubles reference_scores(Scoring scoring, const Doubles& logits) {
  Doubles out;
  double sum = 0.0;
  for (const double x : logits) sum += std::exp(x);
  for (const double x : logits) {
    if (scoring == Scoring::kSoftmax) out.push_back(std::exp(x) / sum);
    if (scoring == Scoring::kSigmoid) out.push_back(1.0 / (1.0 + std::exp(-x)));
    if (scoring == Scoring::kSqrtSoftplus) out.push_back(std::sqrt(std::log(1.0 + std::exp(x))));
  }
  return out;
}

std::vector<Ranked> drop_groups(const RouterConfig& config, const std::vector<Ranked>& experts,
                                bool& close_call) {
  const size_t size = experts.size() / static_cast<size_t>(config.num_groups);
  std::vector<Ranked> groups;
  for (int g = 0; g < config.num_groups; ++g) {
    std::vector<Ranked> members(experts.begin() + g * static_cast<int64_t>(size),
                                experts.begin() + (g + 1) * static_cast<int64_t>(size));
    std::sort(members.begin(), members.end(),
              [](const Ranked& a, const Ranked& b) { return a.value > b.value; });
    Ranked group{g, members[0].value, members[0].magnitude};
    if (config.group_score == GroupScore::kTop2Sum) {
      group.value += members[1].value;
      group.magnitude += members[1].magnitude;
    }
    groups.push_back(group);
  }
  std::set<int> kept;
  for (const Ranked& g : best(groups, config.top_groups, close_call)) kept.insert(g.id);
  std::vector<Ranked> left;
  for (const Ranked& e : experts) {
    if (kept.count(e.id / static_cast<int>(size)) != 0) left.push_back(e);
  }
  return left;
}

// top_k of them.
std::vector<Ranked> best_of_each_group(const RouterConfig& config,
                                       const std::vector<Ranked>& experts, bool& close_call) {
  const int64_t size = std::ssize(experts) / config.num_groups;
  std::vector<Ranked> kept;
  for (int g = 0; g < config.num_groups; ++g) {
    const auto first = experts.begin() + g * size;
    const auto each = static_cast<size_t>(config.top_k / config.num_groups);
    for (const Ranked& e : best({first, first + size}, each, close_call)) kept.push_back(e);
  }
  return kept;
}

Expected reference(const RouterConfig& config, const Doubles& logits, int token_id) {
  Expected out;
  const auto k = static_cast<size_t>(config.top_k);
  const Doubles scores = reference_scores(config.scoring, logits);
  std::vector<Ranked> experts;
  for (size_t e = 0; e < logits.size(); ++e) {
    const double bias =
        config.selection_bias.empty() ? 0.0 : static_cast<double>(config.selection_bias[e]);
    experts.push_back({static_cast<int>(e), scores[e] + bias, scores[e] + std::fabs(bias)});
    if (config.softmax_after_top_k) experts.back() = {static_cast<int>(e), logits[e], 0.0};
  }
  if (!config.hash_table.empty()) {
    const auto row = static_cast<size_t>(std::max(token_id, 0)) * k;
    for (size_t i = 0; i < k; ++i) out.ids.push_back(config.hash_table[row + i]);
  } else {
    if (config.picks_in_every_group) {
      experts = best_of_each_group(config, experts, out.close_call);
    } else if (config.num_groups > 1) {
      experts = drop_groups(config, experts, out.close_call);
    }
    for (const Ranked& e : best(experts, k, out.close_call)) out.ids.push_back(e.id);
  }
  double sum = 0.0;
  for (const int id : out.ids) {
    const auto e = static_cast<size_t>(id);
    out.weights.push_back(config.softmax_after_top_k ? std::exp(logits[e]) : scores[e]);
    sum += out.weights.back();
  }
  const bool divide = config.renormalize || config.softmax_after_top_k;
  for (double& w : out.weights)
    w = (divide ? w / sum : w) * static_cast<double>(config.routed_scaling_factor);
  return out;
}

struct Case {
  RouterConfig config;
  std::vector<float> logits;
  std::vector<int32_t> token_ids;
};

int draw(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

void choose_groups(RouterConfig& c, std::mt19937& random) {
  std::vector<int> divisors;
  for (int d = 2; d <= c.num_experts; ++d) {
    if (c.num_experts % d == 0) divisors.push_back(d);
  }
  if (divisors.empty()) return;
  c.num_groups =
      divisors[static_cast<size_t>(draw(random, 0, static_cast<int>(divisors.size()) - 1))];
  c.top_groups = draw(random, 1, c.num_groups);
  const int size = c.num_experts / c.num_groups;
  if (size >= 2 && draw(random, 0, 1) == 0) c.group_score = GroupScore::kTop2Sum;
  c.top_k = std::min(c.top_k, c.top_groups * size);
}

// D4: as many picks in each group.
void choose_picks_in_every_group(RouterConfig& c, std::mt19937& random) {
  choose_groups(c, random);
  if (c.num_groups == 1) return;
  c.picks_in_every_group = true;
  c.group_score = GroupScore::kMax;
  c.top_groups = c.num_groups;
  c.top_k = c.num_groups * draw(random, 1, std::min(c.num_experts / c.num_groups, 4));
}

// Logits and biases lie on grids: exact ties are frequent, near ties that f32 can't tell apart are
// rare.
Case random_case(uint32_t seed, int64_t tokens) {
  std::mt19937 random(seed);
  Case made;
  RouterConfig& c = made.config;
  const int sizes[] = {1, 2, 3, 7, 8, 12, 16, 60, 64, 128, 256};
  c.num_experts = sizes[draw(random, 0, 10)];
  c.top_k = draw(random, 1, std::min(c.num_experts, draw(random, 0, 3) == 0 ? c.num_experts : 8));
  c.renormalize = draw(random, 0, 1) == 0;
  c.routed_scaling_factor = draw(random, 0, 1) == 0 ? 1.0F : 2.5F;
  c.scoring = static_cast<Scoring>(draw(random, 0, 2));
  const int kind = draw(random, 0, 6);
  if (kind == 0) c.num_zero_experts = draw(random, 1, 5);
  if (kind == 1 || kind == 2) choose_groups(c, random);
  if (kind == 6) choose_picks_in_every_group(c, random);
  if (kind == 3) {
    c.softmax_after_top_k = true;
    c.scoring = Scoring::kSoftmax;
  }
  const int columns = c.num_experts + c.num_zero_experts;
  if (kind == 4) {
    for (int i = 0; i < 10 * c.top_k; ++i) c.hash_table.push_back(draw(random, 0, columns - 1));
  }
  if (kind != 3 && kind != 4 && draw(random, 0, 1) == 0) {
    for (int e = 0; e < columns; ++e)
      c.selection_bias.push_back(static_cast<float>(draw(random, -8, 8)) / 16.0F);
  }
  if (c.num_zero_experts == 0 && draw(random, 0, 4) == 0)
    c.num_appended_experts = draw(random, 1, 3);
  const int level = draw(random, 0, 1) == 0 ? 2 : 48;
  for (int64_t i = 0; i < tokens * columns; ++i) {
    made.logits.push_back(static_cast<float>(draw(random, -level, level)) / 8.0F);
  }
  for (int64_t t = 0; t < tokens; ++t) made.token_ids.push_back(draw(random, -1, 9));
  return made;
}

void expect_token(const RouterConfig& config, const Expected& want, const int32_t* ids,
                  const float* weights, float identity) {
  double want_identity = 0.0;
  for (size_t i = 0; i < want.ids.size(); ++i) {
    const double tolerance = 5e-6 * want.weights[i];
    if (want.ids[i] >= config.num_experts) {
      want_identity += want.weights[i];
      EXPECT_EQ(ids[i], -1);
      EXPECT_EQ(weights[i], 0.0F);
    } else {
      EXPECT_EQ(ids[i], want.ids[i]) << "pick " << i;
      EXPECT_NEAR(weights[i], want.weights[i], tolerance) << "pick " << i;
    }
  }
  EXPECT_NEAR(identity, want_identity, 5e-6 * want_identity);
  for (int i = 0; i < config.num_appended_experts; ++i) {
    EXPECT_EQ(ids[config.top_k + i], config.num_experts + i);
    EXPECT_EQ(weights[config.top_k + i], 1.0F);
  }
}

// R1: logits, scores and weights stay f32 from the gate to the combine; ids are int32.
// B18: a mistake made elsewhere: a second path of the router forgets bias or scaling, masks groups
//     with 0, takes the maximum in place of two, returns biased weights.
TEST(RouterReference, RandomConfigurations) {
  constexpr int64_t kTokens = 4;
  int compared = 0;
  int close_calls = 0;
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case made = random_case(seed, kTokens);
    const RouterConfig& config = made.config;
    std::vector<int32_t> captured;
    const Capture capture = [&](int, int64_t, int, std::span<const int32_t> ids) {
      captured.assign(ids.begin(), ids.end());
    };
    const Routed got =
        route(config, made.logits, {.token_ids = made.token_ids, .capture = &capture});
    const int columns = config.num_experts + config.num_zero_experts;
    const int picks = config.top_k + config.num_appended_experts;
    for (int64_t t = 0; t < kTokens; ++t) {
      const Doubles logits(made.logits.begin() + t * columns,
                           made.logits.begin() + (t + 1) * columns);
      const std::span<const int32_t> seen(captured.data() + t * config.top_k, config.top_k);
      if (config.hash_table.empty()) {
        ASSERT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), seen.size()) << "repeated id";
      }
      const auto at = static_cast<size_t>(t);
      const Expected want = reference(config, logits, made.token_ids[at]);
      if (want.close_call) {
        ++close_calls;
        continue;
      }
      ++compared;
      ASSERT_TRUE(std::equal(seen.begin(), seen.end(), want.ids.begin(), want.ids.end()));
      expect_token(config, want, got.ids.data() + t * picks, got.weights.data() + t * picks,
                   got.identity[at]);
      ASSERT_FALSE(HasFailure()) << "token " << t;
    }
  }
  EXPECT_GT(compared, 19000);
  RecordProperty("compared", compared);
  RecordProperty("close_calls", close_calls);
}

}  // namespace
}  // namespace trimtab
