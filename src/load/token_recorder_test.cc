// SPDX-License-Identifier: Apache-2.0
#include "trimtab/token_recorder.h"

#include <gtest/gtest.h>

#include <vector>

#include "trimtab/error.h"

namespace trimtab {
namespace {

// Tokens 0, 1, ... of one layer; token t picks expert t % experts.
TokenSample recorded(int64_t tokens, int64_t max_tokens, int experts) {
  TokenRecorder recorder(1, experts, 1, max_tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto expert = static_cast<int32_t>(t % experts);
    recorder.add({&expert, 1});
  }
  return recorder.sample();
}

TEST(TokenRecorder, KeepsEveryNthTokenWithinItsBound) {
  for (const int64_t tokens : {0, 1, 4, 5, 8, 9, 16, 17, 1000, 4096}) {
    for (const int64_t max : {1, 4, 7}) {
      const TokenSample sample = recorded(tokens, max, 5000);
      EXPECT_EQ(sample.tokens_seen, tokens);
      EXPECT_LE(sample.num_tokens(), max);
      EXPECT_EQ(sample.num_tokens(), (tokens + sample.stride - 1) / sample.stride);
      if (tokens > max) {
        EXPECT_GT(2 * sample.num_tokens(), max) << tokens << ", " << max;
      }
      for (int64_t t = 0; t < sample.num_tokens(); ++t)
        EXPECT_EQ(sample.picks(t, 0)[0], t * sample.stride);
    }
  }
}

TEST(TokenRecorder, PassesOverPaddingAndRefusesWhatDoesNotFit) {
  TokenRecorder recorder(2, 4, 2, 10);
  recorder.add(std::vector<int32_t>{0, 1, 2, 3});
  recorder.add(std::vector<int32_t>{0, 1, -1, -1});
  EXPECT_EQ(recorder.sample().num_tokens(), 1);
  EXPECT_EQ(recorder.sample().tokens_seen, 1);
  EXPECT_THROW(recorder.add(std::vector<int32_t>{0, 1, 2}), InvalidArgument);
  EXPECT_THROW(recorder.add(std::vector<int32_t>{0, 1, 2, 4}), InvalidArgument);
  EXPECT_THROW(recorder.add(std::vector<int32_t>{0, 1, 2, -2}), InvalidArgument);
  EXPECT_THROW(TokenRecorder(1, 1, 1, 0), InvalidArgument);
}

TEST(TokenRecorder, PartsAreMergedInProportionToTheirTokens) {
  const std::vector<TokenSample> parts = {recorded(32, 8, 100), recorded(6, 8, 100),
                                          recorded(0, 8, 100)};
  ASSERT_EQ(parts[0].stride, 4);
  ASSERT_EQ(parts[1].stride, 1);
  const TokenSample sum = merge_tokens(parts);
  EXPECT_EQ(sum.stride, 4);
  EXPECT_EQ(sum.tokens_seen, 38);
  EXPECT_EQ(sum.num_ranks, 3);
  EXPECT_EQ(sum.ids, (std::vector<int32_t>{0, 4, 8, 12, 16, 20, 24, 28, 0, 4}));
  EXPECT_EQ(sum.source_rank, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1}));
  EXPECT_NO_THROW(check_tokens(sum, 1, 100, 3));
  const TokenSample unknown = merge_tokens(parts, false);
  EXPECT_TRUE(unknown.source_rank.empty());
  EXPECT_EQ(unknown.num_ranks, 0);
  EXPECT_EQ(unknown.ids, sum.ids);
  EXPECT_THROW(merge_tokens({}), InvalidArgument);
  EXPECT_THROW(merge_tokens(std::vector{parts[0], recorded(1, 8, 99)}), InvalidArgument);
}

TEST(TokenRecorder, BoundsTheSampleOfAllRanks) {
  EXPECT_EQ(sampled_tokens_of_rank(4, 2, 4), kMaxSampledTokens / 4);
  EXPECT_EQ(sampled_tokens_of_rank(58, 8, 1), (1 << 22) / 58 / 8);
  EXPECT_EQ(sampled_tokens_of_rank(58, 8, 100'000), 1);
}

}  // namespace
}  // namespace trimtab
