// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kTrace = kTinyMoe + "/trace.npy";

TEST(Replay, ComparesPoliciesOnTheTraceOfTinyMoe) {
  const std::string command =
      "replay " + kTrace + " --ranks 4 --slots 9 --window 16 --policies trim,static,deepseek";
  const Outcome run = trimtab(command + " --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json.at("window"), 16);
  const Json policies = json.at("policies");
  ASSERT_EQ(policies.size(), 3U);
  for (const auto& [name, one] : policies.items()) {
    EXPECT_EQ(one.size(), 5U) << name;
    EXPECT_TRUE(1 < one.at("par_next_mean") && one.at("par_next_mean") < one.at("par_next_worst"))
        << one;
    EXPECT_TRUE(one.at("first_plan_moves").is_number_integer());
    EXPECT_TRUE(one.at("moves_per_layer_per_replan").is_number_float());
    EXPECT_TRUE(one.at("plan_seconds_per_replan").is_number_float());
  }
  EXPECT_EQ(policies.at("static").at("first_plan_moves"), 0);
  EXPECT_GT(policies.at("trim").at("first_plan_moves"), 0);
  EXPECT_LT(policies.at("trim").at("par_next_mean"), policies.at("static").at("par_next_mean"));
  EXPECT_LT(policies.at("trim").at("moves_per_layer_per_replan"),
            policies.at("deepseek").at("moves_per_layer_per_replan"));
  const Outcome text = trimtab(command);
  EXPECT_TRUE(
      contains(text.out, ": 8 windows of 16 steps, 4 layers of 32 experts; 36 slots on 4 ranks\n"));
  EXPECT_TRUE(contains(text.out, "\ntrim ")) << text.out;
}

TEST(Replay, TakesAnEighthOfTheStepsAsWindowAndSaysSo) {
  const std::string command = "replay " + kTrace + " --ranks 4 --slots 9 --policies swift,static";
  const Outcome text = trimtab(command);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out,
                       ": 8 windows of 16 steps (an eighth of the recording; --window "
                       "takes another), 4 layers"))
      << text.out;
  const auto figures = [&](const std::string& options) {
    Json json = Json::parse(trimtab(command + " --json" + options).out);
    for (Json& one : json.at("policies")) one.erase("plan_seconds_per_replan");
    return json;
  };
  EXPECT_EQ(figures("").at("window"), 16);
  EXPECT_EQ(figures(""), figures(" --window 16"));
}

// Worked out by hand: experts 0 and 1 on rank 0, 2 and 3 on rank 1; the fifth step fills no window.
TEST(Replay, MeasuresOnTheNextWindow) {
  const Scratch scratch;
  const std::string loads =
      scratch.file("loads.json", R"({"format": "trimtab_loads", "version": 1, "logical_count":
    [[[1, 1, 1, 1]], [[9, 9, 1, 1]], [[3, 0, 1, 0]], [[1, 0, 1, 0]], [[9, 0, 0, 0]]]})");
  const Json one = Json::parse(trimtab("replay " + loads +
                                       " --ranks 2 --slots 2 --window 2 --policies static --json")
                                   .out)
                       .at("policies")
                       .at("static");
  EXPECT_DOUBLE_EQ(one.at("par_next_mean"), (1.5 + 1.0) / 2);
  EXPECT_DOUBLE_EQ(one.at("par_next_worst"), 1.5);
  EXPECT_EQ(one.at("moves_per_layer_per_replan"), 0.0);
}

// Rank 0 has experts 0 and 1, rank 1 has 2 and 0.
TEST(Replay, SharesTokensByTheRule) {
  const Scratch scratch;
  const std::string loads =
      scratch.file("loads.json", R"({"format": "trimtab_loads", "version": 1, "logical_count":
    [[[4, 4, 0]], [[8, 2, 0]], [[5, 3, 2]]]})");
  const std::string command =
      "replay " + loads + " --ranks 2 --slots 2 --window 1 --policies static --split ";
  const auto par = [&](const std::string& rule) {
    const Outcome run = trimtab(command + rule + " --json");
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("policies").at("static").at("par_next_mean").get<double>();
  };
  EXPECT_DOUBLE_EQ(par("equal"), (6.0 / 5 + 5.5 / 5) / 2);
  EXPECT_DOUBLE_EQ(par("round_robin"), (6.0 / 5 + 6.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(par("split"), 1.0);
  const Outcome text = trimtab(command + "split");
  EXPECT_TRUE(contains(text.out, "A step's tokens are shared out by the rule split.\n"))
      << text.out;
}

TEST(Replay, MeasuresInTimeToo) {
  const Scratch scratch;
  const std::string loads =
      scratch.file("loads.json", R"({"format": "trimtab_loads", "version": 1, "logical_count":
    [[[4, 4, 0]], [[8, 2, 0]], [[5, 3, 2]]]})");
  const Outcome run = trimtab("replay " + loads +
                              " --ranks 2 --slots 2 --window 1 --policies static --split time "
                              "--json");
  EXPECT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("cost"), "rows");
  const Json& one = json.at("policies").at("static");
  EXPECT_DOUBLE_EQ(one.at("par_time_next_mean"), 1.0);
  EXPECT_EQ(one.at("par_time_next_mean"), one.at("par_next_mean"));
  EXPECT_DOUBLE_EQ(one.at("step_seconds_next_mean"), 5e-12);  // a row is a picosecond
}

TEST(Replay, StartsFromTheCurrentPlacementAndKeepsLimits) {
  const Scratch scratch;
  const std::string current = scratch.file("current.json");
  ASSERT_EQ(trimtab("plan " + kTrace + " --ranks 4 --slots 9 -o " + current).status, 0);
  const auto first_moves = [&](const std::string& options) {
    const Outcome run =
        trimtab("replay " + kTrace + " --window 32 --policies trim --json " + options);
    EXPECT_EQ(run.status, 0) << options << run.err;
    return Json::parse(run.out).at("policies").at("trim").at("first_plan_moves").get<int>();
  };
  const int free = first_moves("--ranks 4 --slots 9");
  EXPECT_LT(first_moves("--current " + current), free);
  EXPECT_LE(first_moves("--ranks 4 --slots 9 --max-moves 2"), 8);
  EXPECT_GT(first_moves("--ranks 4 --slots 9 --max-moves 2"), 0);
  EXPECT_LE(first_moves("--ranks 4 --slots 9 --max-receive 1"), 16);
  EXPECT_LE(first_moves("--ranks 4 --slots 9 --max-layers 2"), free);
  EXPECT_LE(first_moves("--ranks 4 --slots 9 --expert-bytes 10 --max-bytes 59"), 5);
  EXPECT_EQ(first_moves("--ranks 4 --slots 9 --move-price 10"), 0);
  EXPECT_GT(first_moves("--ranks 4 --slots 9 --nodes 2 --preset fast --time-budget 0.1"), 0);
}

TEST(Replay, TakesDeepseekAsPublished) {
  const Outcome run =
      trimtab("replay " + kTrace +
              " --ranks 4 --slots 9 --window 32 --policies trim,deepseek --no-keep-slots --json");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_GT(Json::parse(run.out).at("policies").at("deepseek").at("first_plan_moves"), 0);
}

TEST(Replay, Failures) {
  const std::string replay = "replay " + kTrace;
  for (const Failure& failure : std::vector<Failure>{
           {replay, "is required"},
           {replay + " --ranks 4 --slots 9 --window 16", "--policies is required"},
           {replay + " --ranks 4 --window 16 --policies trim",
            "--slots (or --current) is required"},
           {replay + " --ranks 4 --slots 9 --window 16 --policies trim --split best",
            "best not in {equal,"},
           {replay + " --ranks 4 --slots 9 --window 16 --policies trim --time-budget 0",
            "--time-budget"},
           {replay + " --ranks 4 --slots 9 --window 16 --policies trim --move-price -1",
            "--move-price"},
           {replay + " --ranks 4 --slots 9 --window 0 --policies trim", "--window"},
           {replay + " --ranks 4 --slots 9 --window 16 --policies trim,best",
            "best not in {static,"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab replay --help)")) << line;
  }
  EXPECT_EQ(
      error_line({replay + " --ranks 4 --slots 9 --window 65 --policies trim", ""}, 1),
      kTrace +
          " has 128 steps; --window 65 needs 130, to plan on one window and measure on the next");
  EXPECT_EQ(
      error_line(
          {replay + " --ranks 4 --slots 9 --window 16 --policies trim --report /nowhere/x", ""}, 1),
      "--report /nowhere/x can't be written: No such file or directory");
  for (const std::string option : {"--preset fast", "--no-keep-slots"}) {
    const std::string policies = " --ranks 4 --slots 9 --window 16 --policies swift,static ";
    EXPECT_EQ(
        error_line({replay + policies + option, ""}, 2),
        (option == "--no-keep-slots" ? "keep_slots: only deepseek" : "preset: only trim") +
            std::string(" has it, and the policy is swift, static (see trimtab replay --help)"));
  }
  EXPECT_EQ(error_line({replay + " --ranks 4 --slots 2 --window 16 --policies trim", ""}, 1),
            "32 experts do not fit in 8 slots on 4 ranks: at least 8 slots a rank, or 16 ranks of "
            "2, are needed");
}

TEST(Replay, AllPoliciesAreThoseForLayersOfAnySize) {
  const Outcome run =
      trimtab("replay " + kTrace + " --ranks 4 --slots 9 --window 64 --policies all --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  std::vector<std::string> names;
  for (const auto& [name, one] : json.at("policies").items()) names.push_back(name);
  std::ranges::sort(names);
  EXPECT_EQ(names, (std::vector<std::string>{"deepseek", "flashlb", "random", "round_robin",
                                             "static", "swift", "trim"}));
}

}  // namespace
}  // namespace trimtab::cli
