// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

std::string placement_json(const std::string& map) {
  return R"({"format": "trimtab_placement", "version": 1, "num_experts": 3,
    "slots_per_rank": [3, 2],
"physical_to_logical_map": )" +
         map + "}";
}

TEST(Check, SaysWhatAPlacementHolds) {
  const Scratch scratch;
  const std::string file = scratch.file("p.json", placement_json("[[0, 0, 1, 2, 1]]"));
  const Outcome text = trimtab("check " + file);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_EQ(
      text.out,
      file + ": valid (json); 1 layers, 3 experts in 5 slots on 2 ranks, 1 duplicates on a rank\n");
  const Json json = Json::parse(trimtab("check " + file + " --json").out);
  EXPECT_EQ(json.at("file"), file);
  EXPECT_EQ(json.at("format"), "json");
  EXPECT_EQ(json.at("layers"), 1);
  EXPECT_EQ(json.at("experts"), 3);
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("slots_per_rank"), Json({3, 2}));
  EXPECT_EQ(json.at("layer_ids"), Json({0}));
  EXPECT_EQ(json.at("duplicates_per_layer"), Json({1}));
  EXPECT_FALSE(json.contains("par_per_layer"));
}

TEST(Check, MeasuresUnderLoads) {
  const Scratch scratch;
  const std::string file = scratch.file("p.json", placement_json("[[0, 0, 1, 2, 1]]"));
  const std::string loads =
      scratch.file("l.csv", "0,0,0,4\n0,0,1,4\n0,0,2,2\n1,0,0,0\n1,0,1,0\n1,0,2,2\n");
  const Json json = Json::parse(trimtab("check " + file + " --json --loads " + loads).out);
  EXPECT_DOUBLE_EQ(json.at("par_per_layer")[0], 1.0);            // 6 and 6
  EXPECT_DOUBLE_EQ(json.at("par_step_mean_per_layer")[0], 1.6);  // 6 and 4, then 0 and 2
  EXPECT_DOUBLE_EQ(json.at("par_step_worst_per_layer")[0], 2.0);
  const Outcome text = trimtab("check " + file + " --loads " + loads);
  EXPECT_TRUE(contains(text.out, "    0  1.0000          1.6000      2.0000\n")) << text.out;
}

// An expert takes 10 us for a row or two, and 1 us more for each further one.
std::string costs_json(const std::string& weights) {
  return R"({"shape": "small", "hidden": 8, "intermediate": 8, "weights": ")" + weights +
         R"(", "isa": "avx2", "threads": 1,
    "points": [[1, 10000000], [2, 10000000], [3, 11000000]]})";
}
std::string cost_file(const std::string& costs) {
  return R"({"format": "trimtab_costs", "version": 1, "costs": [)" + costs + "]}";
}

TEST(Check, MeasuresInTime) {
  const Scratch scratch;
  const std::string file = scratch.file("p.json", placement_json("[[0, 1, 2, 0, 2]]"));
  const std::string loads = scratch.file("l.csv", "0,0,0,4\n0,0,1,4\n0,0,2,2\n");
  const std::string costs = scratch.file("c.json", cost_file(costs_json("bf16")));
  const std::string command = "check " + file + " --json --loads " + loads;
  const auto measured = [&](const std::string& options) {
    const Outcome run = trimtab(command + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  EXPECT_FALSE(measured("").contains("par_time_per_layer"));
  // Expert 1 is on rank 0, 12 us; 0 and 2 whole on rank 1 take 12 and 10.
  const Json time = measured(" --split time --cost " + costs);
  EXPECT_DOUBLE_EQ(time.at("step_seconds_per_layer")[0], 22e-6);
  EXPECT_DOUBLE_EQ(time.at("par_time_per_layer")[0], 22.0 / 17);
  EXPECT_EQ(time.at("cost"), "small bf16 avx2 on 1 thread");
  EXPECT_EQ(time.at("split"), "time");
  // All replicas are read: 12 and 10 for halves of 0, and 10 for one row of 2 on each rank.
  const Json turns = measured(" --split round_robin --cost " + costs);
  EXPECT_DOUBLE_EQ(turns.at("step_seconds_per_layer")[0], 32e-6);
  EXPECT_DOUBLE_EQ(turns.at("par_time_per_layer")[0], 32.0 / 26);
  // In rows they are level: split gives each rank 5 of 10.
  EXPECT_DOUBLE_EQ(measured(" --split split").at("par_step_mean_per_layer")[0], 1.0);
  const Json rows = measured(" --split split --cost rows");
  EXPECT_DOUBLE_EQ(rows.at("par_time_per_layer")[0], 1.0);
  EXPECT_EQ(rows.at("cost"), "rows");

  const std::string both =
      scratch.file("both.json", cost_file(costs_json("bf16") + "," + costs_json("w8a8")));
  EXPECT_TRUE(contains(error_line({command + " --cost " + both, ""}, 1), "--cost-weights"));
  EXPECT_EQ(measured(" --cost-weights w8a8 --cost " + both).at("cost"),
            "small w8a8 avx2 on 1 thread");
  EXPECT_TRUE(contains(error_line({command + " --cost-weights f16 --cost " + both, ""}, 1),
                       "no costs of weights f16"));
  EXPECT_TRUE(contains(error_line({"check " + file + " --split split", ""}, 2), "without --loads"));
}

TEST(Check, RefusesWhatIsNotValid) {
  const Scratch scratch;
  const std::string lost = scratch.file("lost.json", placement_json("[[0, 0, 1, 1, 1]]"));
  const std::string beyond = scratch.file("beyond.json", placement_json("[[0, 3, 1, 1, 2]]"));
  const std::string short_one = scratch.file("short.json", placement_json("[[0, 1, 2, 1]]"));
  for (const std::string& file : {lost, beyond, short_one}) {
    EXPECT_TRUE(error_line({"check " + file, ""}, 1).starts_with(file + " at byte ")) << file;
  }
  const std::string loads = scratch.file("loads.csv", "0,0,4\n0,1,4\n");
  EXPECT_EQ(error_line({"check " + loads, ""}, 1),
            loads + " at byte 0: holds loads, no placement (csv)");
  EXPECT_TRUE(contains(error_line({"check " + kTinyMoe + "/trace.npy", ""}, 1),
                       "holds loads, no placement (npy of three dimensions)"));
  EXPECT_EQ(error_line({"check " + lost + " --report /nowhere/x", ""}, 1),
            "--report /nowhere/x can't be written: No such file or directory");
  EXPECT_EQ(error_line({"check /nowhere", ""}, 1),
            "can't open /nowhere: No such file or directory");
}

TEST(Check, SaysWhichRuleForNodesIsBroken) {
  const Scratch scratch;
  const std::string plan = scratch.file("p.json");
  const std::string make = "plan " + kTinyMoe +
                           "/trace.npy --ranks 4 --slots 9 --nodes 2 --preset fast --json -o " +
                           plan + " --node-rules ";
  for (const std::string rules : {"groups --groups 4", "even"}) {
    EXPECT_EQ(trimtab(make + rules).status, 0) << rules;
    EXPECT_EQ(trimtab("check " + plan + " --nodes 2 --node-rules " + rules).status, 0) << rules;
  }
  EXPECT_EQ(error_line({"check " + plan + " --nodes 2 --node-rules groups --groups 5", ""}, 1),
            "5 expert groups do not divide 32 experts");
  EXPECT_TRUE(
      contains(error_line({"check " + plan + " --nodes 2 --node-rules groups --groups 4", ""}, 1),
               plan + ", layer 0: expert "));
  EXPECT_TRUE(contains(error_line({"check " + plan + " --nodes 2 --node-rules all", ""}, 1),
                       " has no replica on node "));
  EXPECT_TRUE(contains(error_line({"check " + plan + " --node-rules all", ""}, 2),
                       "--node-rules: it has no effect without --nodes or --topology"));
}

TEST(Check, LoadsMustFit) {
  const Scratch scratch;
  const std::string file = scratch.file("p.json", placement_json("[[0, 0, 1, 2, 1]]"));
  const std::string loads = scratch.file("l.csv", "0,0,4\n0,3,4\n");
  EXPECT_TRUE(contains(error_line({"check " + file + " --loads " + loads, ""}, 1), file));
}

TEST(Check, WrongUsage) {
  for (const Failure& failure :
       std::vector<Failure>{{"check", "PLACEMENT"},
                            {"check x --from csv", "--from: csv not in {json,npy,"},
                            {"check x --ranks 0", "--ranks"},
                            {"check x --loads-format csv", "--loads"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab check --help)")) << line;
  }
}

}  // namespace
}  // namespace trimtab::cli
