// SPDX-License-Identifier: Apache-2.0
// The traffic from rank to rank, as inspect, plan and check show it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

// One step of two tokens; rank r of four holds expert r, ranks 0 and 1 are node 0.
const std::string kTwoTokens = "# layers=1 experts=4 topk=2\nS 0 2\n0 2\n0 1\n";

TEST(Traffic, OfTokensThatAllRanksSendAlike) {
  const Scratch scratch;
  const std::string loads = scratch.file("t.topk.txt", kTwoTokens);
  const Outcome run =
      trimtab("inspect " + loads + " --ranks 4 --nodes 2 --token-bytes 1000 --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json traffic = Json::parse(run.out).at("traffic");
  EXPECT_EQ(traffic.at("tokens_sampled"), 2);
  EXPECT_EQ(traffic.at("tokens_seen"), 2);
  EXPECT_EQ(traffic.at("sources"), "even");
  EXPECT_DOUBLE_EQ(traffic.at("tokens_per_step"), 2);
  EXPECT_EQ(traffic.at("nodes"), 2);
  EXPECT_EQ(traffic.at("token_bytes"), 1000);
  // Each rank sends a quarter of both tokens to rank 0, and of one to ranks 1 and 2.
  for (const Json& row : traffic.at("rank_copies"))
    EXPECT_EQ(row.get<std::vector<double>>(), (std::vector<double>{0.5, 0.25, 0.25, 0}));
  EXPECT_EQ(traffic.at("node_copies"), Json({{1.0, 0.5}, {1.0, 0.5}}));
  EXPECT_DOUBLE_EQ(traffic.at("rank_copies_between_ranks"), 3);
  EXPECT_DOUBLE_EQ(traffic.at("rank_copies_between_nodes"), 2);
  EXPECT_DOUBLE_EQ(traffic.at("node_copies_between_nodes"), 1.5);
  EXPECT_DOUBLE_EQ(traffic.at("picks_between_nodes"), 2);

  const Outcome text = trimtab("inspect " + loads + " --ranks 4 --nodes 2 --token-bytes 1000");
  EXPECT_TRUE(contains(text.out, "From 2 of 2 tokens;\nevery rank sends the same part of each"));
  EXPECT_TRUE(contains(text.out,
                       "  to other nodes, a copy for each node (hybrid)               1.5        "
                       "0.002\n"))
      << text.out;
  EXPECT_TRUE(contains(text.out, "\n    3      0.5      0.2      0.2      0.0\n")) << text.out;
}

TEST(Traffic, OfTokensWhoseRanksAreRecorded) {
  const Scratch scratch;
  const std::string a = scratch.file("a.topk.txt", "# experts=4\nS 0 1\n0 2\n");
  const std::string b = scratch.file("b.topk.txt", "# experts=4\nS 0 1\n2 3\n");
  const std::string command = "inspect " + a + " " + b + " --json --ranks ";
  const Json traffic = Json::parse(trimtab(command + "2").out).at("traffic");
  EXPECT_EQ(traffic.at("sources"), "recorded");
  EXPECT_EQ(traffic.at("rank_copies"), Json({{1.0, 1.0}, {0.0, 1.0}}));
  EXPECT_DOUBLE_EQ(traffic.at("rank_copies_between_ranks"), 1);
  // Two files do not say which of four ranks a token comes from.
  EXPECT_EQ(Json::parse(trimtab(command + "4").out).at("traffic").at("sources"), "even");
}

TEST(Traffic, OfAPlanIsThatOfThePlacementsWhichCheckMeasures) {
  const Scratch scratch;
  std::string tokens = "# layers=2 experts=8 topk=2\n";
  for (int s = 0; s < 4; ++s) {
    tokens += "S " + std::to_string(s) + " 8\n";
    for (int t = 0; t < 8; ++t) {
      const int e = (3 * s + t) % 8, f = (e + 2 + t % 2) % 8;
      tokens += std::to_string(e) + " " + std::to_string(f) + "|" + std::to_string(f) + " " +
                std::to_string(e) + "\n";
    }
  }
  const std::string loads = scratch.file("t.topk.txt", tokens), out = scratch.file("p.json");
  const Outcome run = trimtab("plan " + loads + " --ranks 4 --slots 3 --nodes 2 --preset fast -o " +
                              out + " --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json plan = Json::parse(run.out);
  // 32 tokens in 4 steps, 2 layers.
  for (const std::string when : {"before", "after"}) {
    EXPECT_NEAR(plan.at("traffic").at(when).at("node_copies_between_nodes").get<double>(),
                plan.at("node_copies_" + when).get<double>() * 8 * 2, 1e-9);
  }
  const Outcome check = trimtab("check " + out + " --loads " + loads + " --nodes 2 --json");
  ASSERT_EQ(check.status, 0) << check.err;
  const Json placed = Json::parse(check.out).at("traffic"), after = plan.at("traffic").at("after");
  for (const auto& [key, value] : after.items()) EXPECT_EQ(placed.at(key), value) << key;
  const Outcome text = trimtab("check " + out + " --loads " + loads + " --nodes 2");
  EXPECT_TRUE(contains(text.out, "Copies of a step from rank (rows) to rank (columns)\n"));
  EXPECT_TRUE(contains(trimtab("plan " + loads + " --ranks 4 --slots 3 --policy static").out,
                       "Copies of a step from rank (rows) to rank (columns), after\n"));
}

TEST(Traffic, CostsWhatATopologySays) {
  const Scratch scratch;
  const std::string loads = scratch.file("t.topk.txt", kTwoTokens);
  const std::string topology =
      scratch.file("t.json", R"({"format": "trimtab_topology", "version": 1, "nodes": [0, 0, 1, 1],
                    "in_node": 1, "between_nodes": 10})");
  const std::string command = "inspect " + loads + " --ranks 4 --topology " + topology;
  const Json traffic = Json::parse(trimtab(command + " --json").out).at("traffic");
  EXPECT_EQ(traffic.at("nodes"), 2);
  EXPECT_DOUBLE_EQ(traffic.at("node_copies_between_nodes"), 1.5);
  // Of three copies between ranks, two go between nodes.
  EXPECT_DOUBLE_EQ(traffic.at("copies_cost"), 1 * 1 + 2 * 10);
  EXPECT_TRUE(contains(trimtab(command).out,
                       "  price x copies to ranks                                    21.0\n"));
  const Json plan = Json::parse(
      trimtab("plan " + loads + " --ranks 4 --slots 1 --json --topology " + topology).out);
  // Expert 0 beside 1 or 2: 21 either way, by which of the tokens crosses.
  EXPECT_DOUBLE_EQ(plan.at("copies_cost_before"), 10.5);
  EXPECT_LE(plan.at("copies_cost_after").get<double>(), 10.5);
  EXPECT_DOUBLE_EQ(plan.at("traffic").at("after").at("copies_cost").get<double>(),
                   2 * plan.at("copies_cost_after").get<double>());

  const std::string wrong = scratch.file(
      "wrong.json", R"({"format": "trimtab_topology", "version": 1, "nodes": [0, 1]})");
  const Outcome ranks = trimtab("inspect " + loads + " --ranks 4 --topology " + wrong);
  EXPECT_EQ(ranks.status, 1);
  EXPECT_TRUE(contains(ranks.err, wrong + ": a topology of 2 ranks, placement of 4")) << ranks.err;
  EXPECT_EQ(trimtab(command + " --nodes 2").status, 2);
  const std::string broken = scratch.file("broken.json", "{\"format\": 1}");
  const Outcome format = trimtab("inspect " + loads + " --ranks 4 --topology " + broken);
  EXPECT_EQ(format.status, 1);
  EXPECT_TRUE(contains(format.err, broken + " at byte 11")) << format.err;
}

TEST(Traffic, OfPairsIsNotKnownButPlanned) {
  const Scratch scratch;
  const std::string image = [] {  // one tensor 1_0 [4, 4] of int32: experts 0 and 1, 2 and 3
    const std::string header = R"({"1_0":{"dtype":"I32","shape":[4,4],"data_offsets":[0,64]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    bytes += header;
    const int pairs[4][4] = {{5, 0, 5, 0}, {0, 5, 0, 5}, {5, 0, 5, 0}, {0, 5, 0, 5}};
    for (const auto& row : pairs) {
      for (const int count : row) bytes += std::string{static_cast<char>(count), 0, 0, 0};
    }
    return bytes;
  }();
  const std::string loads = scratch.file("cooccurrence_rank0.safetensors", image);
  const std::string command = "plan " + loads + " --ranks 4 --slots 1 --nodes 2";
  const Outcome text = trimtab(command);
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "Traffic: not known, since the recording counts pairs"))
      << text.out;
  const Json plan = Json::parse(trimtab(command + " --json").out);
  EXPECT_FALSE(plan.contains("traffic"));
  // In order each pair lies on both nodes; planned, on one.
  EXPECT_DOUBLE_EQ(plan.at("node_copies_before"), 1);
  EXPECT_DOUBLE_EQ(plan.at("node_copies_after"), 0.5);
}

TEST(Traffic, IsNotKnownWithoutTokens) {
  const std::string trace = kTinyMoe + "/trace.npy";
  const Outcome run = trimtab("inspect " + trace + " --ranks 4 --nodes 2");
  EXPECT_TRUE(contains(run.out,
                       "Traffic: not known, since the recording lists loads and no "
                       "tokens.\n"))
      << run.out;
  EXPECT_FALSE(contains(trimtab("inspect " + trace + " --ranks 4").out, "Traffic"));
  EXPECT_FALSE(
      Json::parse(trimtab("inspect " + trace + " --ranks 4 --json").out).contains("traffic"));
  const Outcome uneven = trimtab("inspect " + trace + " --ranks 4 --nodes 3");
  EXPECT_EQ(uneven.status, 1);
  EXPECT_TRUE(contains(uneven.err, "3 nodes do not divide 4 ranks")) << uneven.err;
  const Scratch scratch;
  const std::string placement = scratch.file(
      "p.json", R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, 1],
                    "physical_to_logical_map": [[0, 1]]})");
  for (const std::string option : {"--token-bytes 2", "--nodes 2", "--topology t.json"}) {
    const Outcome check = trimtab("check " + placement + " " + option);
    EXPECT_EQ(check.status, 2);
    EXPECT_TRUE(contains(check.err, "it has no effect without --loads")) << check.err;
  }
}

}  // namespace
}  // namespace trimtab::cli
