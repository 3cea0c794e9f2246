// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kModel = "bench model " + kTinyMoe;
const std::string kBrief = " --cold-mb 4 --seconds 0 --rounds 3";

void expect_row(const Json& row) {
  for (const char* key :
       {"ms", "tokens_per_second", "bytes", "active_experts", "pct_stream", "pct_roof"}) {
    EXPECT_TRUE(row.at(key).is_number() && row.at(key) > 0) << key << " " << row;
  }
  EXPECT_LE(row.at("ms_quartiles")[0], row.at("ms"));
  EXPECT_EQ(row.at("rounds"), 3);
}

TEST(BenchModel, RatesByBatchAndContext) {
  const std::string command = kModel +
                              " --prefill 5,300 --batch 1,8 --context 0,40 --dtype bf16 "
                              "--experts w4a8 --kv bf16 --threads-per-rank 2" +
                              kBrief;
  const Outcome run = trimtab(command + " --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("experts"), "w4a8");
  EXPECT_EQ(json.at("linear"), "bf16");
  EXPECT_EQ(json.at("kv"), "bf16");
  EXPECT_EQ(json.at("threads_per_rank"), 2);
  EXPECT_TRUE(json.at("stream_gbytes") > 0 && json.at("load_seconds") > 0);
  ASSERT_EQ(json.at("prefill").size(), 2U);
  EXPECT_EQ(json.at("prefill")[1].at("tokens"), 300);
  EXPECT_EQ(json.at("prefill")[1].at("steps"), 2);  // of 256 tokens at most
  ASSERT_EQ(json.at("decode").size(), 4U);
  const Json& last = json.at("decode")[3];
  EXPECT_EQ(last.at("batch"), 8);
  EXPECT_EQ(last.at("context"), 40);
  for (const char* kind : {"prefill", "decode"}) {
    for (const Json& row : json.at(kind)) expect_row(row);
  }
  // Eight sequences read keys and values of 40 positions more each, and as many weights or more.
  const Json& empty = json.at("decode")[1];
  EXPECT_GE(double{last.at("bytes")} - double{json.at("decode")[2].at("bytes")},
            7 * 41 * double{json.at("kv_bytes_per_token")});
  EXPECT_EQ(empty.at("context"), 0);
  EXPECT_NEAR(double{last.at("tokens_per_second")}, 8e3 / double{last.at("ms")},
              1e-6 * double{last.at("tokens_per_second")});

  const Outcome text = trimtab(command + " --ranks 2");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "2 ranks x 2 threads, pull")) << text.out;
  EXPECT_TRUE(contains(text.out, "\n     40      8 ")) << text.out;
}

// The whole file of prompts: a line a sequence.
TEST(BenchModel, PerplexityOfAFormat) {
  const std::string text = kTinyMoe + "/prompts.txt";
  const auto bits = [&](const std::string& options) {
    const Outcome run = trimtab(kModel + " --perplexity " + text + options + " --json");
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("perplexity");
  };
  const Json bf16 = bits(" --dtype bf16");
  const std::string content = read_file(text);
  const auto breaks = std::count(content.begin(), content.end(), '\n');
  EXPECT_EQ(bf16.at("tokens"), static_cast<int64_t>(content.size()) - breaks);
  EXPECT_EQ(bf16.at("windows"), breaks);
  EXPECT_TRUE(bf16.at("bits_per_token") > 0.5 && bf16.at("bits_per_token") < 4) << bf16;
  EXPECT_NEAR(double{bf16.at("value")}, std::exp2(double{bf16.at("bits_per_token")}), 1e-9);
  EXPECT_EQ(bits(" --dtype bf16 --ranks 3"), bf16);
  const Json w4a8 = bits(" --dtype bf16 --weights w8a8 --experts w4a8");
  EXPECT_NE(w4a8, bf16);
  EXPECT_NEAR(double{w4a8.at("value")}, double{bf16.at("value")}, 0.05 * double{bf16.at("value")});
  EXPECT_GT(bits(" --dtype bf16 --window 8").at("value"), bf16.at("value"));
  EXPECT_TRUE(contains(trimtab(kModel + " --perplexity " + text).out, "\nperplexity "));
}

TEST(BenchModel, PerplexityOfTokenIds) {
  const Scratch scratch;
  const std::string ids = scratch.file("ids.txt", "1,2,3\n4 5;6,7,8,9\n");
  const std::string model = kFixtures + "qwen3_moe";
  const Outcome run = trimtab("bench model " + model + " --json --perplexity " + ids);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out).at("perplexity");
  EXPECT_EQ(json.at("tokens"), 6);
  EXPECT_EQ(json.at("windows"), 3);
  EXPECT_EQ(
      Json::parse(trimtab("bench model " + model + " --json --perplexity '1,2,3;4,5;6,7,8,9'").out)
          .at("perplexity"),
      json);
}

// The ranks are processes, each with the experts of its own slots.
TEST(BenchModel, RunsOnProcesses) {
  if (!kHasMpi) GTEST_SKIP() << "needs MPI";
  const Scratch scratch;
  const auto report = [&](const std::string& options) {
    const std::string file = scratch.file("stdout");
    const int status = std::system((std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 3 " +
                                    TRIMTAB_BINARY + " " + kModel + options + " --json >" + file)
                                       .c_str());
    return WEXITSTATUS(status) == 0 ? Json::parse(read_file(file)) : Json(WEXITSTATUS(status));
  };
  const std::string text = " --perplexity " + kTinyMoe + "/prompts.txt";
  const Json processes = report(text);
  if (processes == 77) GTEST_SKIP() << "needs mpiexec";
  ASSERT_TRUE(processes.is_object()) << processes;
  EXPECT_EQ(processes.at("ranks"), 3);
  EXPECT_EQ(processes.at("perplexity"),
            Json::parse(trimtab(kModel + text + " --json").out).at("perplexity"));
  const Json rates = report(" --prefill 20 --batch 2 --context 20" + kBrief);
  ASSERT_TRUE(rates.is_object()) << rates;
  expect_row(rates.at("prefill")[0]);
  expect_row(rates.at("decode")[0]);
}

TEST(BenchModel, PackedModelsKeepTheirFormats) {
  const Scratch scratch;
  const std::string packed = scratch.file("packed");
  ASSERT_EQ(trimtab("pack " + kTinyMoe + " " + packed + " --dtype bf16 --experts w4a8").status, 0);
  const Outcome run =
      trimtab("bench model " + packed + " --prefill 4 --batch 1 --context 4 --json" + kBrief);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("experts"), "w4a8");
}

TEST(BenchModel, SaysWhatIsWrong) {
  for (const Failure& failure : std::vector<Failure>{
           {kModel + " --batch 0", "--batch"},
           {kModel + " --window 8", "--window: it has no effect without --perplexity"},
           {kModel + " --perplexity x.txt --batch 4",
            "--batch: it has no effect with --perplexity"},
           {kModel + " --kv f8", "unknown format of keys and values"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
  }
  for (const Failure& failure : std::vector<Failure>{
           {kModel + " --perplexity no-such.txt", "no-such.txt: can't be read"},
           {kModel + " --prefill 100000" + kBrief, "max_position_embeddings of the model is"},
           {"bench model " + kFixtures + "qwen3_moe --perplexity no-such.txt",
            "--perplexity no-such.txt: neither a file nor token ids"},
           {"bench model " + kFixtures + "qwen3_moe --perplexity 7",
            "no sequence has two tokens"}}) {
    const std::string line = error_line(failure, 1);
    EXPECT_TRUE(contains(line, failure.message)) << line;
  }
}

}  // namespace
}  // namespace trimtab::cli
