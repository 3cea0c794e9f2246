// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's raw statistics: the tokens of each rank, and how often experts were picked
// together.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "recordings/testing.h"

namespace trimtab {
namespace {

struct Ints {
  std::vector<int64_t> shape;
  std::vector<int32_t> values;
};

// An image of int32 tensors.
std::string image_of(const std::map<std::string, Ints>& tensors) {
  std::map<std::string, TensorView> views;
  for (const auto& [name, ints] : tensors)
    views[name] = {DType::kI32, ints.shape, std::as_bytes(std::span(ints.values))};
  return safetensors_image(views);
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// Two ranks, iterations 7 and 8, layers 3 and 4, 4 experts, top 2.
struct Folder {
  TestFolder folder;
  std::string path = folder.path("statistics");

  Folder() {
    std::filesystem::create_directory(path);
    write(path + "/meta_info.json", R"({"num_experts": 4, "num_experts_per_token": 2})");
    for (const int rank : {0, 1}) {
      const Ints counts = {{4}, {1, 2, 3, 4}};
      write(file("rank", rank, ".safetensors"),
            image_of({{"7_3", counts}, {"7_4", counts}, {"8_3", counts}, {"8_4", counts}}));
    }
  }
  std::string file(const std::string& begin, int rank, const std::string& end) const {
    return path + "/" + begin + std::to_string(rank) + end;
  }
};

// Iteration 7 has two tokens, 8 has one.
const std::map<std::string, Ints> kTokens = {{"7_3", {{2, 2}, {0, 1, 2, 3}}},
                                             {"7_4", {{2, 2}, {1, 0, 3, 2}}},
                                             {"8_3", {{1, 2}, {0, 2}}},
                                             {"8_4", {{1, 2}, {3, 1}}}};

TEST(TrtllmTokens, OfAllRanksComeWithTheirRanks) {
  for (const auto& [begin, end] :
       {std::pair("rank", "_raw.safetensors"), {"token_selected_experts_rank", ".safetensors"}}) {
    const Folder folder;
    EXPECT_FALSE(read_recording(folder.path).tokens);
    write(folder.file(begin, 0, end), image_of(kTokens));
    expect_refused<FormatError>([&] { read_recording(folder.path); }, "is missing; other ranks");
    std::map<std::string, Ints> padded = kTokens;
    padded["8_3"].values = {-1, -1};
    write(folder.file(begin, 1, end), image_of(padded));
    const Recording recording = read_recording(folder.path);
    EXPECT_EQ(recording.load.at(0, 0)[3], 8);  // the counts are those of rank*.safetensors
    ASSERT_TRUE(recording.tokens);
    EXPECT_EQ(recording.tokens->ids, (std::vector<int32_t>{0, 1, 1, 0, 2, 3, 3, 2, 0, 2, 3, 1,  //
                                                           0, 1, 1, 0, 2, 3, 3, 2}));
    EXPECT_EQ(recording.tokens->source_rank, (std::vector<int32_t>{0, 0, 0, 1, 1}));
    EXPECT_EQ(recording.tokens->num_ranks, 2);
    EXPECT_EQ(recording.tokens->tokens_seen, 5);
    EXPECT_FALSE(recording.tokens->is_of_pairs);
    EXPECT_NO_THROW(check_tokens(*recording.tokens, 2, 4, 2));
  }
}

TEST(TrtllmTokens, OfOneFileAreCounted) {
  const Recording recording = parse_loads(image_of(kTokens), FileFormat::kTrtllm);
  EXPECT_EQ(recording.load.counts,
            (std::vector<int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 1, 0, 1}));
  EXPECT_EQ(recording.step_ids, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(recording.layer_ids, (std::vector<int>{3, 4}));
  ASSERT_TRUE(recording.tokens);
  EXPECT_EQ(recording.tokens->num_tokens(), 3);
  EXPECT_TRUE(recording.tokens->source_rank.empty());
}

TEST(TrtllmTokens, ThatAreBrokenAreRefused) {
  const auto refused = [](std::map<std::string, Ints> tensors, const std::string& part,
                          int experts = 0) {
    expect_refused<FormatError>(
        [&] { parse_loads(image_of(tensors), FileFormat::kTrtllm, {.num_experts = experts}); },
        part);
  };
  refused({{"1_1", {{1, 2}, {0, 1}}}, {"1_2", {{2, 2}, {0, 1, 0, 1}}}},
          "tensor 1_2: 2 tokens; the first layer of the iteration has 1");
  refused({{"1_1", {{1, 2}, {0, 1}}}, {"1_2", {{1, 1}, {0}}}},
          "tensor 1_2: 1 picks of a token; others have 2");
  refused({{"1_1", {{1, 2}, {0, 1}}}, {"1_2", {{2}, {0, 1}}}},
          "tensor 1_2: a shape [tokens, top_k] expected");
  refused({{"1_1", {{1, 2}, {1, 1}}}}, "tensor 1_1: token 0 picks expert 1 twice");
  refused({{"1_1", {{1, 2}, {1, -2}}}}, "token 0 picks expert -2 of 2");
  refused({{"1_1", {{1, 2}, {1, 3}}}}, "token 0 picks expert 3 of 3", 3);
  refused({{"1_1", {{1, 2}, {0, 1}}}, {"2_2", {{1, 2}, {0, 1}}}}, "iteration 2 has no layer 1");
  refused({{"1_1", {{1, 2}, {0, 1}}}, {"1_2", {{1, 2}, {0, 1}}}, {"2_1", {{1, 2}, {0, 1}}}},
          "iteration 2 has 1 of 2 layers");
  refused({{"1_1", {{1, 1}, {1'000'000}}}, {"2_1", {{0, 1}, {}}}, {"3_1", {{0, 1}, {}}}},
          "too few to be a recording");
  const Folder folder;
  for (const int rank : {0, 1}) {
    std::map<std::string, Ints> tokens = kTokens;
    if (rank == 1) {
      tokens.erase("7_4");
      tokens.erase("8_4");
    }
    write(folder.file("rank", rank, "_raw.safetensors"), image_of(tokens));
  }
  expect_refused<FormatError>([&] { read_recording(folder.path); },
                              "1 layers, 2 picks of a token; 2 and 2 expected");
}

// [experts, experts] of tokens that pick these two experts each.
Ints pairs_of(const std::vector<std::pair<int, int>>& tokens, int experts) {
  Ints pairs{{experts, experts}, std::vector<int32_t>(cells(experts, experts))};
  for (const auto& [a, b] : tokens) {
    for (const int i : {a, b}) {
      for (const int j : {a, b}) ++pairs.values[cells(i, experts) + cells(j)];
    }
  }
  return pairs;
}

TEST(TrtllmPairs, StandInForTokensAsOftenAsTheyWereCounted) {
  const Folder folder;
  Ints mine = pairs_of({{0, 1}, {0, 1}, {2, 3}}, 4), other = pairs_of({{1, 2}}, 4);
  for (Ints* pairs : {&mine, &other}) {
    for (int32_t& count : pairs->values) count *= 1000;
  }
  for (const int rank : {0, 1}) {
    const Ints& first = rank == 0 ? mine : other;
    write(folder.file("cooccurrence_rank", rank, ".safetensors"),
          image_of({{"7_3", first}, {"7_4", mine}, {"8_3", mine}, {"8_4", mine}}));
  }
  // In thousands: layer 3 has {0, 1} six times, {2, 3} three, {1, 2} once; layer 4 has {0, 1} and
  // {2, 3}, two to one.
  const Recording recording = read_recording(folder.path);
  ASSERT_TRUE(recording.tokens);
  const TokenSample& pairs = *recording.tokens;
  EXPECT_TRUE(pairs.is_of_pairs);
  EXPECT_EQ(pairs.top_k, 2);
  EXPECT_TRUE(pairs.source_rank.empty());
  EXPECT_NO_THROW(check_tokens(pairs, 2, 4, 2));
  std::map<std::vector<int32_t>, double> share[2];
  for (int64_t t = 0; t < pairs.num_tokens(); ++t) {
    for (const int layer : {0, 1}) {
      const auto picks = pairs.picks(t, layer);
      share[layer][{picks.begin(), picks.end()}] += 1.0 / static_cast<double>(pairs.num_tokens());
    }
  }
  EXPECT_EQ(share[0].size(), 3U);
  EXPECT_NEAR((share[0][{0, 1}]), 6.0 / 10, 1e-3);
  EXPECT_NEAR((share[0][{1, 2}]), 1.0 / 10, 1e-3);
  EXPECT_NEAR((share[0][{2, 3}]), 3.0 / 10, 1e-3);
  EXPECT_EQ(share[1].size(), 2U);
  EXPECT_NEAR((share[1][{0, 1}]), 2.0 / 3, 1e-3);
  // Tokens are better than pairs.
  for (const int rank : {0, 1})
    write(folder.file("rank", rank, "_raw.safetensors"), image_of(kTokens));
  EXPECT_FALSE(read_recording(folder.path).tokens->is_of_pairs);
}

TEST(TrtllmPairs, OfOneFileAreCountedByTheDiagonal) {
  const std::string image = image_of({{"1_0", pairs_of({{0, 1}, {0, 2}}, 3)}});
  const Recording recording = parse_recording(bytes_of(image), "x/cooccurrence_rank0.safetensors");
  EXPECT_EQ(recording.load.counts, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_TRUE(recording.tokens->is_of_pairs);
}

TEST(TrtllmPairs, ThatAreBrokenAreRefused) {
  const auto refused = [](const Ints& pairs, const std::string& part) {
    const std::string image = image_of({{"1_0", pairs}});
    expect_refused<FormatError>(
        [&] { parse_recording(bytes_of(image), "cooccurrence_rank0.safetensors"); }, part);
  };
  refused({{1, 2}, {1, 1}}, "a shape [experts, experts] expected");
  refused({{2, 2}, {1, 1, 0, 1}}, "experts 0 and 1: 1 tokens picked both, 0 the other way round");
  refused({{2, 2}, {1, 2, 2, 5}}, "2 tokens picked both, more than picked one");
  refused({{2, 2}, {1, -1, -1, 5}}, "-1 tokens picked both");
  refused({{1, 1}, {-1}}, "expert 0: the count is negative");
}

}  // namespace
}  // namespace trimtab
