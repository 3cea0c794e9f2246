// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kQuick = "bench dispatch --hidden 64 --top-k 4 --experts 12 --seconds 0 ";

TEST(BenchDispatch, JsonHasARowForEachDispatcherAndBatch) {
  const Outcome run =
      trimtab(kQuick + "--dispatcher source,pull,hybrid --ranks 3 --hosts 2 --tokens 2,9 --json");
  EXPECT_EQ(run.status, 1);  // pull needs one host
  EXPECT_TRUE(contains(run.err, "pull needs ranks that share memory")) << run.err;
  const Outcome fine =
      trimtab(kQuick + "--dispatcher source,packed,hybrid --ranks 3 --hosts 2 --tokens 2,9 --json");
  ASSERT_EQ(fine.status, 0) << fine.err;
  const Json rows = Json::parse(fine.out).at("rows");
  ASSERT_EQ(rows.size(), 6U);
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("backend"), "threads");
    EXPECT_EQ(row.at("ranks"), 3);
    EXPECT_EQ(row.at("hosts"), 2);
    EXPECT_EQ(row.at("hidden"), 64);
    EXPECT_EQ(row.at("top_k"), 4);
    EXPECT_EQ(row.at("experts"), 12);
    EXPECT_EQ(row.at("dtype"), "bf16");
    EXPECT_EQ(row.at("rounds"), 7);
    for (const char* key :
         {"ms_dispatch", "ms_combine", "ms_memcpy", "cpu_ms_dispatch", "pct_of_memcpy"}) {
      EXPECT_TRUE(row.at(key) > 0) << key << " " << row;
      const Json quartiles = row.at(std::string(key) + "_quartiles");
      EXPECT_TRUE(row.at(key) >= quartiles[0] && row.at(key) <= quartiles[1]) << key << " " << row;
    }
  }
  EXPECT_EQ(rows[0].at("dispatcher"), "source");
  EXPECT_EQ(rows[5].at("dispatcher"), "hybrid");
  EXPECT_EQ(rows[5].at("tokens"), 9);
}

TEST(BenchDispatch, TextAndQuantisedRows) {
  const Outcome run = trimtab(kQuick + "--dispatcher pull,all_to_all --tokens 5 --dtype int8");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(
      contains(run.out, "4 ranks (threads), 1 host, hidden 64, top-k 4 of 12 experts, int8\n"))
      << run.out;
  EXPECT_TRUE(contains(run.out, "\nall_to_all         5 ")) << run.out;
}

TEST(BenchDispatch, WholeLayers) {
  const Outcome run =
      trimtab(kQuick + "--dispatcher pull,fused --ranks 2 --tokens 4 --intermediate 32 --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json rows = Json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), 2U);
  for (const Json& row : rows) {
    EXPECT_EQ(row.at("tokens"), 4);
    EXPECT_EQ(row.at("intermediate"), 32);
    EXPECT_EQ(row.at("rounds"), 7);
    EXPECT_TRUE(row.at("ms_layer") > 0 && row.at("cpu_ms_layer") > 0) << row;
    EXPECT_FALSE(row.contains("pct_hidden"));
  }
  EXPECT_EQ(rows[0].at("pct_of_first"), 100);
  EXPECT_EQ(rows[1].at("dispatcher"), "fused");
  const Outcome text = trimtab(
      kQuick + "--dispatcher packed --ranks 2 --hosts 2 --tokens 4 --intermediate 32 --overlap");
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "% hidden (quartiles)\npacked             4 ")) << text.out;
}

TEST(BenchDispatch, WrongUsage) {
  for (const Failure& failure :
       std::vector<Failure>{{"bench dispatch --dispatcher push", "push not in {source,"},
                            {"bench dispatch --hosts 3 --ranks 2", "more hosts than ranks"},
                            {"bench dispatch --top-k 9 --experts 8", "more picks than experts"},
                            {"bench dispatch --dtype int4", "int4 not in {"},
                            {"bench dispatch --overlap", "say --intermediate"},
                            {"bench dispatch --intermediate 8 --dispatcher source",
                             "source is no dispatcher for whole layers"},
                            {"bench dispatch --intermediate 8 --dtype f32", "in bf16 only"},
                            {"bench dispatch --tokens 0", "--tokens"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
  }
}

}  // namespace
}  // namespace trimtab::cli
