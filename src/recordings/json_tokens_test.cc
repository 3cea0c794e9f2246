// SPDX-License-Identifier: Apache-2.0
// Sampled tokens in Trimtab's JSON.
#include "recordings/testing.h"

namespace trimtab {
namespace {

Recording with_tokens(bool has_sources) {
  Recording recording = some_recording();  // 2 layers of 4 experts
  TokenSample& tokens = recording.tokens.emplace();
  tokens.num_layers = 2;
  tokens.num_experts = 4;
  tokens.top_k = 2;
  tokens.ids = {0, 1, 2, 3, 3, 0, 1, 2};
  tokens.tokens_seen = 7;
  tokens.stride = 4;
  if (has_sources) {
    tokens.source_rank = {2, 0};
    tokens.num_ranks = 3;
  }
  return recording;
}

TEST(JsonTokens, ReadBackAsTheyWereWritten) {
  for (const bool has_sources : {false, true}) {
    Recording out = with_tokens(has_sources);
    out.tokens->is_of_pairs = !has_sources;
    const std::string image = serialize_recording(out, FileFormat::kJson);
    const Recording back = parse_recording(bytes_of(image), "some");
    EXPECT_EQ(back.load.counts, out.load.counts);
    ASSERT_TRUE(back.tokens);
    EXPECT_EQ(back.tokens->num_layers, 2);
    EXPECT_EQ(back.tokens->num_experts, 4);
    EXPECT_EQ(back.tokens->top_k, 2);
    EXPECT_EQ(back.tokens->ids, out.tokens->ids);
    EXPECT_EQ(back.tokens->source_rank, out.tokens->source_rank);
    EXPECT_EQ(back.tokens->num_ranks, out.tokens->num_ranks);
    EXPECT_EQ(back.tokens->tokens_seen, 7);
    EXPECT_EQ(back.tokens->stride, 4);
    EXPECT_EQ(back.tokens->is_of_pairs, !has_sources);
  }
  EXPECT_FALSE(
      parse_recording(bytes_of(serialize_recording(some_recording(), FileFormat::kJson)), "some")
          .tokens);
}

TEST(JsonTokens, OfTopKTextAreKept) {
  const Recording text = parse_loads("# experts=4\n0 1|2 3\n1 2|3 0\n", FileFormat::kTopK);
  const std::string image = serialize_recording(text, FileFormat::kJson);
  EXPECT_EQ(parse_recording(bytes_of(image), "some").tokens->ids, text.tokens->ids);
}

TEST(JsonTokens, ThatAreBrokenAreRefusedWithTheirPlace) {
  const std::string begin =
      R"({"format": "trimtab_loads", "version": 1, "logical_count": [[1, 1], [1, 1]], "tokens": )";
  const auto refused = [&](const std::string& tokens, const std::string& part,
                           int64_t offset = -1) {
    expect_loads_refused(FileFormat::kJson, begin + tokens + "}", part, offset);
  };
  const auto at = std::ssize(begin);
  refused(R"({"top_k": 1, "seen": 2})", R"(sampled tokens without "ids")", at);
  refused(R"({"seen": 2, "ids": [[0, 1]]})", R"(without "top_k")", at);
  refused(R"({"top_k": 1, "ids": [[0, 1]]})", R"(without "seen")", at);
  refused(R"({"top_k": 1, "seen": 0, "ids": [[0, 1]]})", "0 is out of range");
  refused(R"({"top_k": 1, "seen": 1, "ids": [[0, 1], [1, 1]]})", "2 sampled tokens of 1", at);
  refused(R"({"top_k": 2, "seen": 2, "ids": [[0, 1]]})",
          "sampled tokens of 2 experts; 2 layers x 2 expected", at);
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1], [0, 2]]})", "token 1 picks expert 2 of 2",
          at + 40);
  refused(R"({"top_k": 2, "seen": 2, "ids": [[0, 1, 1, 1]]})",
          "token 0 picks expert 1 twice in layer 1");
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1]], "source_rank": [0]})",
          R"("source_rank" and "num_ranks" come together)");
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1]], "source_rank": [0, 1], "num_ranks": 2})",
          "2 source ranks for 1 tokens");
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1]], "source_rank": [2], "num_ranks": 2})",
          "a token comes from rank 2 of 2");
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1]], "id": 1})", R"(unknown key "id")");
  refused(R"({"top_k": 1, "seen": 2, "ids": [[0, 1]], "of": "tokens"})", R"("pairs" expected)");
  refused(R"({"top_k": 1, "seen": 2, "ids": []})", "");
}

}  // namespace
}  // namespace trimtab
