// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kQuick = " --cold-mb 4 --seconds 0";

void expect_timing(const Json& row) {
  for (const char* key : {"ms", "gflops", "pct_stream", "pct_peak", "pct_roof"}) {
    EXPECT_TRUE(row.at(key).is_number() && row.at(key) > 0) << key << " " << row;
  }
  EXPECT_TRUE(row.at("pct_roof") >= row.at("pct_roof_quartiles")[0] &&
              row.at("pct_roof") <= row.at("pct_roof_quartiles")[1]);
  EXPECT_EQ(row.at("pairs"), 7);
}

TEST(Bench, SingleProducts) {
  const std::string command =
      "bench experts --shape 48x80,200x64 --dtype f32,bf16 --m 1,7" + kQuick;
  const Outcome run = trimtab(command + " --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  ASSERT_EQ(json.at("rows").size(), 8U);
  for (const Json& row : json.at("rows")) {
    EXPECT_EQ(row.at("gemm"), "linear");
    EXPECT_EQ(row.at("threads"), 1);
    EXPECT_EQ(row.at("isa"), json.at("isa"));
    expect_timing(row);
  }
  const Json& last = json.at("rows")[7];
  EXPECT_EQ(last.at("shape"), "200x64");
  EXPECT_EQ(last.at("dtype"), "bf16");
  EXPECT_EQ(last.at("m"), 7);
  EXPECT_NEAR(double{last.at("gflops")}, 2 * 200 * 64 * 7 * 1e-6 / double{last.at("ms")},
              0.2 * double{last.at("gflops")});
  const Json& ceilings = json.at("ceilings").at(0);
  EXPECT_TRUE(ceilings.at("stream_gbytes") > 0 && ceilings.at("bf16_gflops") > 0) << ceilings;
  const Outcome text = trimtab(command);
  EXPECT_TRUE(contains(text.out, "\n200x64        linear   bf16        7 ")) << text.out;
}

TEST(Bench, BothProductsOfAModel) {
  const Outcome run = trimtab("bench experts --shape olmoe --m 1 --threads 2 --json" + kQuick);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json rows = Json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("gemm"), "gate_up");
  EXPECT_EQ(rows[1].at("gemm"), "down");
  EXPECT_EQ(rows[1].at("threads"), 2);
  expect_timing(rows[0]);
}

TEST(Bench, WholeLayer) {
  const std::string command =
      "bench experts --layer --shape olmoe --tokens 1,3 --routing skewed" + kQuick;
  const Outcome run = trimtab(command + " --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json rows = Json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("model"), "olmoe");
  EXPECT_EQ(rows[0].at("routing"), "skewed");
  EXPECT_EQ(rows[0].at("active_experts"), 8.0);
  EXPECT_EQ(rows[1].at("tokens"), 3);
  EXPECT_TRUE(rows[1].at("active_experts") > 8 && rows[1].at("active_experts") < 24) << rows[1];
  EXPECT_TRUE(rows[1].at("pct_moving") > 0 && rows[1].at("pct_moving") < 100) << rows[1];
  expect_timing(rows[1]);
}

TEST(Bench, ListsTheInstructionSets) {
  const Outcome run = trimtab("bench --isa --json --cold-mb 4");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("ceilings")[0].at("isa"), "scalar");
  EXPECT_FALSE(json.contains("rows"));
  EXPECT_TRUE(contains(trimtab("bench --isa --cold-mb 4").out,
                       "the kernels use " + std::string(json.at("isa"))));
}

TEST(Bench, KernelsAndPeakFollowTrimtabIsa) {
  setenv("TRIMTAB_ISA", "scalar", 1);
  const Outcome run = trimtab("bench experts --shape 48x80 --m 1 --json" + kQuick);
  unsetenv("TRIMTAB_ISA");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("rows")[0].at("isa"), "scalar");
  EXPECT_EQ(json.at("ceilings")[0].at("isa"), "scalar");
}

TEST(Bench, WrongUsage) {
  for (const Failure& failure : std::vector<Failure>{
           {"bench", "--isa, experts, dispatch, split, model, machine or sockets is required"},
           {"bench experts --shape 8y8", "8y8 is neither a model (mixtral, qwen3-30b, "},
           {"bench experts --dtype f32,f64", "f64 is not a dtype of weights: f32, bf16"},
           {"bench experts --m 0", "--m"},
           {"bench experts --tokens 4", "--tokens requires --layer"},
           {"bench experts --layer --m 4", "--layer excludes --m"},
           {"bench experts --layer --shape 8x8", "8x8 is not a model"},
           {"bench experts --layer --routing even", "even is not a kind of routing"},
           {"bench experts --threads 0", "--threads"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab bench --help)")) << line;
  }
}

}  // namespace
}  // namespace trimtab::cli
