// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kTrace = kTinyMoe + "/trace.npy";

TEST(Inspect, ShowsTheTraceOfTinyMoe) {
  const Outcome run = trimtab("inspect " + kTrace + " --ranks 4");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  const std::vector<std::string> all = lines(run.out);
  EXPECT_EQ(all[0], kTrace + ": npy, 128 steps x 4 layers x 32 experts, 1048576 tokens routed");
  EXPECT_EQ(all[1], "On 4 ranks, experts in order; drift between windows of 32 steps");
  ASSERT_GE(all.size(), 8U);
  for (size_t layer = 0; layer < 4; ++layer) {
    std::istringstream row(all[4 + layer]);
    size_t number = 9;
    double par = 0, mean = 0, floor = 0, worst = 0;
    row >> number >> par >> mean >> floor >> worst;
    EXPECT_EQ(number, layer);
    EXPECT_TRUE(1 <= par && par <= mean && mean <= worst && worst <= 4 && floor < mean)
        << all[4 + layer];
  }
  EXPECT_TRUE(contains(run.out, "Noise floor: ")) << run.out;
}

TEST(Inspect, JsonOfAFewCounts) {
  const Scratch scratch;
  const std::string a = scratch.file("a.csv", "5,0,0,4\n5,0,1,1\n6,0,0,0\n6,0,1,1\n");
  const std::string b = scratch.file("b.csv", "5,0,0,2\n5,0,1,1\n6,0,0,0\n6,0,1,1\n");
  const Outcome run = trimtab("inspect " + a + " " + b + " --ranks 2 --window 1 --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("files"), Json({a, b}));
  EXPECT_EQ(json.at("format"), "csv");
  EXPECT_EQ(json.at("steps"), 2);
  EXPECT_EQ(json.at("layers"), 1);
  EXPECT_EQ(json.at("experts"), 2);
  EXPECT_EQ(json.at("tokens"), 10);
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("window"), 1);
  ASSERT_EQ(json.at("per_layer").size(), 1U);
  const Json layer = json.at("per_layer")[0];
  EXPECT_EQ(layer.at("layer"), 0);
  EXPECT_DOUBLE_EQ(layer.at("par"), 1.2);             // 6 and 4
  EXPECT_DOUBLE_EQ(layer.at("par_step_mean"), 1.75);  // 6 and 2, then 0 and 2
  EXPECT_DOUBLE_EQ(layer.at("par_step_worst"), 2.0);
  EXPECT_EQ(layer.at("worst_step"), 6);
  EXPECT_DOUBLE_EQ(layer.at("drift_mean"), 0.75);
  EXPECT_DOUBLE_EQ(layer.at("drift_worst"), 0.75);
  EXPECT_GT(layer.at("noise_floor"), 1.0);
  EXPECT_EQ(layer.at("hottest")[0].at("expert"), 0);
  EXPECT_DOUBLE_EQ(layer.at("hottest")[0].at("share"), 0.6);
}

TEST(Inspect, OneStepHasNoDrift) {
  const Scratch scratch;
  const std::string file = scratch.file("a.csv", "0,0,4\n0,1,1\n");
  const Json json = Json::parse(trimtab("inspect " + file + " --json").out);
  EXPECT_EQ(json.at("ranks"), 8);
  EXPECT_TRUE(json.at("per_layer")[0].at("drift_mean").is_null());
  EXPECT_TRUE(contains(trimtab("inspect " + file).out, " -  0 (80.0 %) 1 (20.0 %)\n"));
}

TEST(Inspect, TakesAPlacement) {
  const Scratch scratch;
  const std::string loads = scratch.file("a.csv", "0,0,4\n0,1,2\n0,2,2\n");
  const std::string map = scratch.file("map.json", R"({"format": "trimtab_placement", "version": 1,
    "slots_per_rank": [2, 2], "physical_to_logical_map": [[0, 1, 0, 2]]})");
  const Json json = Json::parse(trimtab("inspect " + loads + " --json --current " + map).out);
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_DOUBLE_EQ(json.at("per_layer")[0].at("par"), 1.0);
}

TEST(Inspect, Failures) {
  const Scratch scratch;
  const std::string a = scratch.file("a.csv", "0,0,4\n0,1,1\n");
  const std::string map = scratch.file("map.json", R"({"physical_to_logical_map": [[0, 1]]})");
  for (const Failure& failure :
       std::vector<Failure>{{"inspect", "FILE"},
                            {"inspect x --window 0", "--window"},
                            {"inspect x --ranks -3", "--ranks"},
                            {"inspect x --from yaml", "--from: yaml not in {json,"},
                            {"inspect x --current-format json", "--current"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab inspect --help)")) << line;
  }
  EXPECT_EQ(error_line({"inspect /nowhere", ""}, 1),
            "can't open /nowhere: No such file or directory");
  EXPECT_EQ(error_line({"inspect " + a + " --report /nowhere/x", ""}, 1),
            "--report /nowhere/x can't be written: No such file or directory");
  EXPECT_EQ(error_line({"inspect " + a + " --current " + map, ""}, 1),
            map + ": sglang does not say how many ranks there are; give --ranks");
  EXPECT_TRUE(contains(error_line({"inspect " + a + " " + kTrace, ""}, 1), a));
  EXPECT_TRUE(contains(error_line({"inspect " + a + " --from json", ""}, 1), a));
}

}  // namespace
}  // namespace trimtab::cli
