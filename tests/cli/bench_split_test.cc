// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

// Weights cost as much as 20 rows.
constexpr const char* kCosts = R"({"format": "trimtab_costs", "version": 1, "costs": [
  {"shape": "small", "hidden": 64, "intermediate": 32, "weights": "f32", "isa": "avx2",
   "threads": 1,
   "points": [[1, 2100], [11, 3100]]}]})";

TEST(BenchSplit, TimeIsTheLeastOfAllRulesAndNotBelowTheBound) {
  const Scratch scratch;
  const Outcome run = trimtab(
      "bench split --ranks 8 --slots 5 --experts 32 --top-k 4 --steps 8 --tokens 4,64 --json "
      "--cost " +
      scratch.file("costs.json", kCosts));
  ASSERT_EQ(run.status, 0) << run.err;
  const Json rows = Json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), 8U);
  std::map<int, std::map<std::string, Json>> by_tokens;
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("cost"), "small f32 avx2 on 1 thread");
    EXPECT_TRUE(row.at("us") > 0) << row;
    EXPECT_TRUE(row.at("ms") >= row.at("ms_bound") && row.at("reads") >= row.at("reads_bound"))
        << row;
    by_tokens[row.at("tokens")][row.at("rule")] = row;
  }
  for (auto& [tokens, rules] : by_tokens) {
    ASSERT_EQ(rules.size(), 4U);
    for (const char* other : {"static", "round_robin", "split"})
      EXPECT_TRUE(rules["time"].at("ms") <= rules[other].at("ms")) << tokens << " " << other;
    EXPECT_TRUE(rules["split"].at("par_rows") <= rules["time"].at("par_rows"));
  }
  // With more rows more of the replicas pay.
  EXPECT_TRUE(by_tokens[4]["time"].at("replicas_used") < by_tokens[64]["time"].at("replicas_used"));
}

TEST(BenchSplit, TakesTheStepsOfARecording) {
  const Outcome run =
      trimtab("bench split --ranks 8 --slots 5 --tokens 1 --loads " + kTinyMoe + "/trace.npy");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "8 ranks x 5 slots, " + kTinyMoe + "/trace.npy\n")) << run.out;
  EXPECT_TRUE(contains(run.out, "\nweights alone\n")) << run.out;
  EXPECT_TRUE(contains(run.out, "\n     1  time        ")) << run.out;
  EXPECT_TRUE(contains(run.out, "\n     1  (bound)     ")) << run.out;
}

TEST(BenchSplit, WritesAndReadsMeasuredCosts) {
  const Scratch scratch;
  const std::string file = scratch.file("costs.json");
  const Outcome measured =
      trimtab("bench experts --shape olmoe --m 1,4 --cold-mb 32 --seconds 0 --cost-out " + file);
  ASSERT_EQ(measured.status, 0) << measured.err;
  const Outcome run = trimtab(
      "bench split --ranks 2 --slots 3 --experts 4 --top-k 2 --steps 2 --tokens 1 --cost " + file);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "\nolmoe bf16 ")) << run.out;
}

TEST(BenchSplit, RefusesWhatIsImpossible) {
  EXPECT_EQ(trimtab("bench split --experts 8 --top-k 9").status, 2);
  EXPECT_EQ(trimtab("bench split --ranks 2 --slots 3 --experts 7").status, 2);
  EXPECT_EQ(trimtab("bench split --cost absent.json").status, 1);
  EXPECT_EQ(trimtab("bench experts --shape 48x80 --cost-out /tmp/c.json").status, 2);
}

}  // namespace
}  // namespace trimtab::cli
