// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kTrace = kTinyMoe + "/trace.npy";

Json json_of(const std::string& arguments) {
  const Outcome run = trimtab(arguments + " --json");
  EXPECT_EQ(run.status, 0) << arguments << "\n" << run.err;
  return Json::parse(run.out);
}

TEST(Plan, LevelsTheRecordedTraceOfTinyMoe) {
  const Scratch scratch;
  const std::string file = scratch.file("placement.json");
  const Json plan = json_of("plan " + kTrace + " --ranks 4 --slots 9 -o " + file);
  EXPECT_EQ(plan.at("policy"), "trim");
  EXPECT_EQ(plan.at("layers"), 4);
  EXPECT_GT(plan.at("par_step_before"), 1.3);
  EXPECT_LT(plan.at("par_step_after"), 1.1);
  EXPECT_LT(plan.at("par_after"), plan.at("par_before"));
  EXPECT_GE(plan.at("par_after"), plan.at("lower_bound"));
  EXPECT_GE(plan.at("lower_bound"), 1.0);
  EXPECT_GT(plan.at("moves"), 0);
  EXPECT_DOUBLE_EQ(plan.at("moves_per_layer").get<double>() * 4, plan.at("moves").get<double>());
  EXPECT_EQ(plan.at("duplicates"), 0);

  const Json written = Json::parse(read_file(file));
  EXPECT_EQ(written.at("physical_to_logical_map").size(), 4U);
  EXPECT_EQ(written.at("physical_to_logical_map")[0].size(), 36U);
  EXPECT_EQ(written.at("metadata").at("policy"), "trim");

  // What was planned is what the placement does.
  const Json check = json_of("check " + file + " --loads " + kTrace);
  double par = 0, par_step = 0;
  for (int layer = 0; layer < 4; ++layer) {
    par += check.at("par_per_layer")[layer].get<double>() / 4;
    par_step += check.at("par_step_mean_per_layer")[layer].get<double>() / 4;
  }
  EXPECT_NEAR(par, plan.at("par_after"), 1e-9);
  EXPECT_NEAR(par_step, plan.at("par_step_after"), 1e-9);

  // And what it starts from the next time.
  const Json again = json_of("plan " + kTrace + " --current " + file + " --policy static");
  EXPECT_EQ(again.at("par_before"), plan.at("par_after"));
}

// The loads of FlashLB's example, eight times, so that whole tokens can be level.
TEST(Plan, PlansForTheRuleThatServes) {
  const Scratch scratch;
  const std::string loads =
      scratch.file("flashlb.json", R"({"format": "trimtab_loads", "version": 1, "logical_count":
    [[[4800, 4480, 960, 960, 160, 80, 80, 80]]]})");
  const std::string command = "plan " + loads + " --ranks 8 --slots 2";
  const Json equal = json_of(command);
  EXPECT_EQ(equal.at("moves"), 7);
  EXPECT_FALSE(equal.contains("split"));
  const Json split = json_of(command + " --split split");
  EXPECT_EQ(split.at("moves"), 5);
  EXPECT_EQ(split.at("par_after"), 1.0);
  EXPECT_EQ(split.at("split"), "split");
  EXPECT_FALSE(split.contains("cost"));
  // Without a file of costs, times are rows, and the output says so.
  const Json time = json_of(command + " --split time");
  EXPECT_EQ(time.at("cost"), "rows");
  EXPECT_EQ(time.at("moves"), 5);
  EXPECT_EQ(time.at("par_time_after"), 1.0);
  const Outcome text = trimtab(command + " --split time");
  EXPECT_TRUE(contains(text.out, "times are rows, since --cost names no file")) << text.out;
}

TEST(Plan, JsonHasExactlyTheDocumentedKeys) {
  const Json plan = json_of("plan " + kTrace + " --ranks 4 --slots 9 --policy deepseek");
  const std::vector<std::string> wanted = {
      "duplicates",      "layers",       "lower_bound", "lower_bound_split", "moves",
      "moves_per_layer", "par_after",    "par_before",  "par_step_after",    "par_step_after_high",
      "par_step_before", "plan_seconds", "policy",      "receive_peak"};
  std::vector<std::string> keys;
  for (const auto& [key, value] : plan.items()) keys.push_back(key);
  EXPECT_EQ(keys, wanted);
  for (const char* key : {"layers", "moves", "receive_peak", "duplicates"})
    EXPECT_TRUE(plan.at(key).is_number_integer()) << key;
  for (const char* key :
       {"par_before", "par_after", "par_step_before", "par_step_after", "par_step_after_high",
        "lower_bound", "lower_bound_split", "moves_per_layer", "plan_seconds"}) {
    EXPECT_TRUE(plan.at(key).is_number_float()) << key;
  }
}

TEST(Plan, SaysHowSureItIs) {
  const Scratch scratch;
  const auto plan = [&](const std::string& counts) {
    const std::string loads = scratch.file(
        "loads.json",
        R"({"format": "trimtab_loads", "version": 1, "logical_count": )" + counts + "}");
    return json_of("plan " + loads + " --ranks 2 --slots 2 --policy static");
  };
  // Steps of PAR 1.5, 1 and 1.25: mean 1.25, standard error 0.25 / sqrt(3), Student's t for two
  // degrees of freedom.
  const Json three = plan("[[[2, 1, 1, 0]], [[1, 1, 1, 1]], [[3, 2, 2, 1]]]");
  EXPECT_NEAR(three.at("par_step_after"), 1.25, 1e-12);
  EXPECT_NEAR(three.at("par_step_after_high"), 1.25 + 4.303 * 0.25 / std::sqrt(3.0), 1e-3);
  const Json one = plan("[[[2, 1, 1, 0]]]");
  EXPECT_EQ(one.at("par_step_after_high"), one.at("par_step_after"));
  // One expert has most tokens: only where they are split freely over its copies could the ranks be
  // level.
  const std::string hot = scratch.file("hot.csv", "0,0,90\n0,1,20\n0,2,10\n");
  const Json bounds = json_of("plan " + hot + " --ranks 2 --slots 2 --policy static");
  EXPECT_TRUE(1 < bounds.at("lower_bound") && bounds.at("lower_bound") <= 65.0 / 60) << bounds;
  EXPECT_DOUBLE_EQ(bounds.at("lower_bound_split"), 1.0);
  const Outcome text = trimtab("plan " + hot + " --ranks 2 --slots 2");
  EXPECT_TRUE(contains(text.out, "Up to: upper end of the 95 % interval")) << text.out;
}

TEST(Plan, TakesEveryPolicyAndPreset) {
  for (const std::string how :
       {"--policy static", "--policy round_robin", "--policy random", "--policy deepseek",
        "--policy swift", "--policy flashlb", "--preset fast", "--preset deep", "--time-budget 0.2",
        "--move-price 0.01"}) {
    const Json plan = json_of("plan " + kTrace + " --ranks 4 --slots 9 " + how);
    EXPECT_LE(plan.at("par_step_after"), plan.at("par_step_before").get<double>() * 2) << how;
    EXPECT_EQ(plan.at("policy"), how.starts_with("--policy") ? how.substr(9) : "trim");
  }
}

TEST(Plan, KeepsSlotsOfDeepseekUnlessToldNotTo) {
  const Scratch scratch;
  const std::string kept = scratch.file("kept.json"), published = scratch.file("published.json");
  const std::string plan = "plan " + kTrace + " --ranks 4 --slots 9 --policy deepseek";
  EXPECT_EQ(json_of(plan + " -o " + kept).at("moves"),
            json_of(plan + " --no-keep-slots -o " + published).at("moves"));
  const auto map = [](const std::string& file) {
    return Json::parse(read_file(file)).at("physical_to_logical_map");
  };
  auto a = map(kept).get<std::vector<std::vector<int>>>(),
       b = map(published).get<std::vector<std::vector<int>>>();
  EXPECT_NE(a, b);
  for (auto* layers : {&a, &b}) {
    for (std::vector<int>& layer : *layers) {
      for (auto rank = layer.begin(); rank != layer.end(); rank += 9) std::sort(rank, rank + 9);
    }
  }
  EXPECT_EQ(a, b);
}

TEST(Plan, KeepsLimits) {
  const std::string base = "plan " + kTrace + " --ranks 4 --slots 9";
  const Json few = json_of(base + " --max-moves 3");
  EXPECT_LE(few.at("moves"), 12);
  EXPECT_GT(few.at("moves"), 0);
  EXPECT_LE(json_of(base + " --expert-bytes 1000 --max-bytes 25500").at("moves"), 25);
  EXPECT_EQ(json_of(base + " --max-moves 0").at("moves"), 0);
  EXPECT_EQ(json_of(base + " --max-receive 1").at("receive_peak"), 1);
  EXPECT_LE(json_of(base + " --max-layers 1").at("moves"), 36);
  EXPECT_EQ(json_of(base + " --max-layers 0").at("moves"), 0);
}

// The mean over the layers of a list that check prints.
double mean_of(const Json& per_layer) {
  double sum = 0;
  for (const Json& value : per_layer) sum += value.get<double>();
  return sum / static_cast<double>(per_layer.size());
}

TEST(Plan, DrawsACurveOfPlansThatCanBeHad) {
  const Scratch scratch;
  const std::string command = "plan " + kTrace + " --ranks 4 --slots 9 --expert-bytes 1000";
  const Json plan = json_of(command + " --curve");
  const Json& curve = plan.at("curve");
  ASSERT_GT(curve.size(), 10U);
  EXPECT_EQ(curve[0].at("moves"), 0);
  EXPECT_EQ(curve[0].at("par"), plan.at("par_before"));
  EXPECT_EQ(curve[0].at("par_step"), plan.at("par_step_before"));
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i].at("bytes"), 1000 * curve[i].at("moves").get<int64_t>());
    EXPECT_FALSE(curve[i].contains("step_seconds"));
    if (i == 0) continue;
    EXPECT_GT(curve[i].at("moves"), curve[i - 1].at("moves"));
    EXPECT_LT(curve[i].at("par_step"), curve[i - 1].at("par_step"));
  }
  EXPECT_LE(curve.back().at("par_step").get<double>(),
            plan.at("par_step_after").get<double>() + 1e-9);
  // The curve is only printed: the plan is the same without it.
  const Json without = json_of(command);
  EXPECT_FALSE(without.contains("curve"));
  for (const char* key : {"moves", "par_after", "par_step_after"})
    EXPECT_EQ(without.at(key), plan.at(key)) << key;

  // With the bytes of a row as the limit, the placement has the row's moves and, counted again by
  // check, its PAR.
  for (const size_t i : {size_t{1}, size_t{7}, curve.size() / 2, curve.size() - 1}) {
    const Json& point = curve[i];
    const std::string file = scratch.file("placement.json");
    const Json limited =
        json_of(command + " --max-bytes " + point.at("bytes").dump() + " -o " + file);
    EXPECT_EQ(limited.at("moves"), point.at("moves"));
    const Json check = json_of("check " + file + " --loads " + kTrace);
    EXPECT_NEAR(mean_of(check.at("par_per_layer")), point.at("par"), 1e-9) << point;
    EXPECT_NEAR(mean_of(check.at("par_step_mean_per_layer")), point.at("par_step"), 1e-9) << point;
  }

  const Outcome text = trimtab("plan " + kTrace + " --ranks 4 --slots 9 --curve");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "this plan")) << text.out;
}

// One step in which every expert has as many tokens: no move gains anything.
TEST(Plan, TheCurveOfLevelLoadsIsOnePoint) {
  const Scratch scratch;
  const std::string loads = scratch.file("level.csv", "0,0,10\n0,1,10\n0,2,10\n0,3,10\n");
  const Json plan = json_of("plan " + loads + " --ranks 2 --slots 2 --curve");
  EXPECT_EQ(plan.at("moves"), 0);
  ASSERT_EQ(plan.at("curve").size(), 1U);
  EXPECT_EQ(plan.at("curve")[0].at("par_step"), 1.0);
}

TEST(Plan, WritesWhatEachEngineReads) {
  const Scratch scratch;
  for (const std::string format : {"json", "npy", "sglang", "trtllm", "vllm", "vllm-ascend"}) {
    const std::string file = scratch.file("placement." + format);
    json_of("plan " + kTrace + " --ranks 4 --slots 9 --format " + format + " -o " + file);
    const Json check = json_of("check " + file + " --ranks 4");
    EXPECT_EQ(check.at("format"), format);
    EXPECT_EQ(check.at("layers"), 4);
    EXPECT_EQ(check.at("experts"), 32);
    EXPECT_EQ(check.at("slots_per_rank"), Json({9, 9, 9, 9}));
  }
}

TEST(Plan, KeepsTheEnginesLayerNumbers) {
  const Scratch scratch;
  const std::string loads =
      scratch.file("loads.json",
                   R"({"format": "trimtab_loads", "version": 1, "layer_ids": [3, 4],
          "logical_count": [[9, 1, 1, 1], [1, 1, 1, 9]]})");
  const std::string yaml = scratch.file("placement.yaml");
  json_of("plan " + loads + " --ranks 2 --slots 3 --format trtllm -o " + yaml);
  EXPECT_EQ(json_of("check " + yaml + " --ranks 2").at("layer_ids"), Json({3, 4}));
  const Outcome text = trimtab("plan " + loads + " --ranks 2 --current " + yaml);
  EXPECT_TRUE(contains(text.out, "\n    3 ")) << text.out << text.err;
}

TEST(Plan, PrintsATableAndWhereItWent) {
  const Scratch scratch;
  const std::string file = scratch.file("x.json");
  const Outcome run =
      trimtab("plan " + kTrace + " --ranks 4 --slots 9 --expert-bytes 10 -o " + file);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(
      contains(run.out, "128 steps, 4 layers of 32 experts; 36 slots on 4 ranks; policy trim\n"))
      << run.out;
  EXPECT_TRUE(contains(run.out, "layer   before   after   bound")) << run.out;
  EXPECT_TRUE(contains(run.out, "\n mean ")) << run.out;
  EXPECT_TRUE(contains(run.out, "0 bytes); planned in ")) << run.out;
  EXPECT_TRUE(contains(run.out, "The placement is in " + file + " (json).\n")) << run.out;
}

TEST(Plan, SumsTheFilesOfSeveralRanks) {
  const Scratch scratch;
  const std::string a = scratch.file("a.csv", "0,0,8\n0,1,0\n0,2,0\n0,3,1\n");
  const std::string b = scratch.file("b.csv", "0,0,0\n0,1,8\n0,2,1\n0,3,0\n");
  EXPECT_DOUBLE_EQ(json_of("plan " + a + " " + b + " --ranks 2 --slots 2").at("par_before"),
                   16.0 / 9);
  EXPECT_DOUBLE_EQ(json_of("plan " + a + " " + b + " --ranks 2 --slots 2").at("par_after"), 1.0);
}

TEST(Plan, WrongUsageIsOneLineAndStatus2) {
  for (const Failure& failure : std::vector<Failure>{
           {"plan", "LOADS"},
           {"plan x", "--ranks (or --current) is required"},
           {"plan x --ranks 4", "--slots (or --current) is required"},
           {"plan x --ranks 0", "--ranks"},
           {"plan x --policy best", "--policy: best not in {static,"},
           {"plan x --preset slow", "--preset: slow not in {fast,balanced,deep}"},
           {"plan x --format csv",
            "--format: csv not in {json,npy,sglang,trtllm,vllm,vllm-ascend}"},
           {"plan x --from yaml", "--from: yaml not in {json,"},
           {"plan x --max-bytes 4", "--expert-bytes"},
           {"plan x --max-moves -1", "--max-moves"},
           {"plan x --expert-bytes 0", "--expert-bytes"},
           {"plan x --current-format json", "--current"},
           {"plan x -o ''", "--out: is empty"},
           {"plan x --report ''", "--report: is empty"},
       }) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab plan --help)")) << line;
  }
}

TEST(Plan, FailuresAreOneLineAndStatus1) {
  const Scratch scratch;
  const std::string current = scratch.file("current.json"), yaml = scratch.file("current.yaml");
  json_of("plan " + kTrace + " --ranks 4 --slots 9 -o " + current);
  json_of("plan " + kTrace + " --ranks 4 --slots 9 --format trtllm -o " + yaml);
  const std::string small = scratch.file("small.csv", "0,0,1\n0,1,1\n");
  const std::string plan = "plan " + kTrace;
  for (const Failure& failure : std::vector<Failure>{
           {"plan /nowhere --ranks 4 --slots 9", "can't open /nowhere: No such file or directory"},
           {"plan " + current + " --ranks 4 --slots 9",
            current + " at byte 0: holds a placement, no loads (json)"},
           {plan + " --ranks 4 --slots 2",
            "32 experts do not fit in 8 slots on 4 ranks: at least 8 slots a rank, or 16 ranks of "
            "2, are needed"},
           {plan + " --ranks 50000 --slots 50000",
            "50000 ranks x 50000 slots are more than 1048576 slots"},
           {plan + " --ranks 4 --slots 9 --nodes 3", "3 nodes do not divide 4 ranks"},
           {plan + " --ranks 4 --slots 9 --policy deepseek --groups 5",
            "5 expert groups do not divide 32 experts"},
           {plan + " --ranks 4 --slots 9 --nodes 2 --node-rules all",
            "the rule all needs 32 slots on each node, node 0 has 18"},
           {plan + " --ranks 4 --slots 9 --nodes 2 --node-rules even --policy swift",
            "rules for nodes: swift does not keep to them; trim does, and deepseek to that for "
            "groups"},
           {plan + " --ranks 4 --slots 9 --policy optimal",
            "optimal proves plans of up to 24 experts in 64 slots, not of 32 in 36; use trim"},
           {plan + " --ranks 4 --slots 9 --report /nowhere/x",
            "--report /nowhere/x can't be written: No such file or directory"},
           {plan + " --ranks 4 --slots 9 -o /nowhere/x",
            "-o /nowhere/x can't be written: No such file or directory"},
           {plan + " --current " + current + " --slots 8",
            "--slots 8, but rank 0 of " + current + " has 9 slots; a plan keeps them"},
           {plan + " --current " + yaml,
            yaml + ": trtllm does not say how many ranks there are; give --ranks"},
       }) {
    EXPECT_EQ(error_line(failure, 1), failure.message);
  }
  for (const Failure& failure : std::vector<Failure>{
           {" --policy swift --preset fast", "preset: only trim has it, and the policy is swift"},
           {" --no-keep-slots", "keep_slots: only deepseek has it, and the policy is trim"},
           {" --groups 4",
            "groups: only deepseek has it, and the policy is trim; --node-rules groups uses them "
            "too"},
           {" --node-rules even", "--node-rules: it has no effect without --nodes or --topology"},
           {" --format vllm", "--format: it has no effect without --out"},
           {" --tokens-per-step 3",
            "--tokens-per-step: " + kTrace + " is npy, and only top-k text is cut by it"},
           {" --time-budget nan", "--time-budget: nan is not a number from 1e-06 to 1e+06"},
           {" --move-price nan", "--move-price: nan is not a number from 0 to 1e+06"}}) {
    EXPECT_EQ(error_line({plan + " --ranks 4 --slots 9" + failure.arguments, ""}, 2),
              failure.message + " (see trimtab plan --help)");
  }
  EXPECT_TRUE(contains(error_line({"plan " + small + " --current " + current, ""}, 1), current));
  EXPECT_TRUE(contains(error_line({plan + " --ranks 3 --current " + current, ""}, 1), current));
}

// The issue's example: an expert twice on a rank beats the bound, so that the bound must say that
// it speaks of placements without.
TEST(Plan, TheBoundSaysThatItHoldsWithoutDuplicates) {
  const Scratch scratch;
  const std::string loads = scratch.file("loads.csv", "0,0,4000\n0,1,1000\n0,2,1000\n");
  const std::string placement = scratch.file(
      "placement.json", R"({"format": "trimtab_placement", "version": 1, "num_experts": 3,
    "slots_per_rank": [2, 2, 2], "physical_to_logical_map": [[0, 0, 0, 0, 1, 2]]})");
  const Outcome checked = trimtab("check " + placement + " --json --loads " + loads);
  ASSERT_EQ(checked.status, 0) << checked.err;
  const double par = Json::parse(checked.out).at("par_per_layer")[0];
  const std::string plan = "plan " + loads + " --ranks 3 --slots 2 --policy optimal";
  const Json told = json_of(plan);
  EXPECT_EQ(par, 1);
  EXPECT_NEAR(told.at("lower_bound"), 7.0 / 6, 1e-3);
  EXPECT_EQ(told.at("lower_bound_split"), 1);
  const std::string page = scratch.file("page.html");
  EXPECT_EQ(trimtab(plan + " --report " + page).status, 0);
  const auto squeezed = [](const std::string& text) {
    std::string words;
    for (const char c : text) {
      const char shown = c == '\n' ? ' ' : c;
      if (shown != ' ' || words.empty() || words.back() != ' ') words += shown;
    }
    return words;
  };
  for (const std::string& text : {trimtab(plan).out, trimtab("plan --help").out, read_file(page)}) {
    EXPECT_TRUE(contains(squeezed(text),
                         "placements with these slots in which no rank holds an expert twice") ||
                contains(squeezed(text),
                         "no placement with these slots in which no rank holds an expert twice"))
        << text;
  }
}

TEST(Plan, LayersThatDifferAreNamed) {
  const Scratch scratch;
  const auto loads = [&](const std::string& name, const std::string& ids) {
    return scratch.file(name, R"({"format": "trimtab_loads", "version": 1, "layer_ids": )" + ids +
                                  R"(, "logical_count": [[2, 1], [1, 2]]})");
  };
  const std::string three = loads("three.json", "[3, 4]"), five = loads("five.json", "[3, 5]");
  const std::string placement = scratch.file("placement.json");
  json_of("plan " + three + " --ranks 2 --slots 1 -o " + placement);
  EXPECT_EQ(error_line({"plan " + five + " --current " + placement, ""}, 1),
            placement + " has layer 4 where " + five + " has layer 5");
  const std::string one = scratch.file("one.csv", "0,0,1\n0,1,1\n");
  EXPECT_EQ(error_line({"plan " + one + " --current " + placement, ""}, 1),
            placement + " has 2 layers, " + one + " has 1");
}

TEST(Plan, HelpTeaches) {
  const Outcome help = trimtab("plan --help");
  EXPECT_EQ(help.status, 0);
  for (const char* part : {"--ranks", "--slots", "--nodes", "--groups", "--current", "--policy",
                           "--preset", "--max-moves", "--max-bytes", "--no-keep-slots",
                           "--expert-bytes", "--format", "--report", "--json", "Examples"}) {
    EXPECT_TRUE(contains(help.out, part)) << part;
  }
}

}  // namespace
}  // namespace trimtab::cli
