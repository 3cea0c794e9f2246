// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/cores.h"
#include "tests/cli/command.h"
#include "trimtab/npy.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

TEST(Run, PrintsTextSpeedAndLoad) {
  const Scratch scratch;
  const std::string prompts = scratch.file("prompts", "The evening\nВыберите\r\nimport os");
  const Outcome run =
      trimtab("run " + kTinyMoe + " --ranks 3 --threads-per-rank 1 --steps 5 --prompts " + prompts);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(contains(run.out,
                       "(qwen3_moe, 4 MoE layers of 32 experts, top-4), 3 ranks x 1 thread, pull, "
                       "f32, keys and values in f32 (2.0 kB a token)\n"))
      << run.out;
  for (const char* prompt :
       {"[1] The evening\n  | ", "[2] Выберите\n  | ", "[3] import os\n  | "}) {
    EXPECT_TRUE(contains(run.out, prompt)) << run.out;
  }
  EXPECT_FALSE(contains(run.out, "[4]"));
  EXPECT_TRUE(contains(run.out, "15 new tokens in ")) << run.out;
  EXPECT_TRUE(contains(run.out, " tokens/s (new tokens of all prompts")) << run.out;

  const std::vector<std::string> all = lines(run.out);
  const auto par = std::find(all.begin(), all.end(), "layer    PAR  busiest rank");
  const auto load = std::find(all.begin(), all.end(), " rank        rows   share (all layers)");
  ASSERT_NE(par, all.end());
  ASSERT_NE(load, all.end());
  for (int layer = 0; layer < 4; ++layer) {
    std::istringstream row(par[layer + 1]);
    int number = -1, busiest = -1;
    double value = 0.0;
    row >> number >> value >> busiest;
    EXPECT_EQ(number, layer);
    EXPECT_TRUE(value >= 1.0 && value <= 3.0) << value;
    EXPECT_TRUE(busiest >= 0 && busiest < 3) << busiest;
  }
  int64_t rows = 0;
  for (int rank = 0; rank < 3; ++rank) {
    std::istringstream row(load[rank + 1]);
    int64_t number = -1, count = 0;
    row >> number >> count;
    EXPECT_EQ(number, rank);
    rows += count;
  }
  // Bytes and a beginning-of-sequence token each, and 4 of the 5 new tokens are fed back; 4 layers,
  // top-4.
  EXPECT_EQ(rows, (12 + 17 + 10 + 3 * 4) * 4 * 4);
}

TEST(Run, KeepsAllWeightsAsAsked) {
  const auto formats = [](const std::string& options) {
    const Outcome run = trimtab("run " + kTinyMoe + " --ranks 1 --steps 3 --json " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    const Json json = Json::parse(run.out);
    return json.at("linear").get<std::string>() + " " + json.at("experts").get<std::string>();
  };
  EXPECT_EQ(formats("--weights w8a8"), "w8a8 w8a8");
  EXPECT_EQ(formats("--weights w8a8 --experts w4a8-g32"), "w8a8 w4a8-g32");
  EXPECT_EQ(formats("--experts mxfp8 --dtype bf16"), "bf16 mxfp8");
  const Outcome text = trimtab("run " + kTinyMoe + " --steps 3 --weights w8a8");
  EXPECT_TRUE(contains(text.out, "f32, attention and head in w8a8, experts in w8a8")) << text.out;
  const Outcome refused = trimtab("run " + kTinyMoe + " --weights w3a8");
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, "--weights")) << refused.err;
}

TEST(Run, WritesJson) {
  const Outcome run = trimtab("run " + kTinyMoe +
                              " --ranks 2 --steps 6 --dtype bf16 --dispatcher all_gather --json");
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("model"), kTinyMoe);
  EXPECT_EQ(json.at("model_type"), "qwen3_moe");
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_EQ(json.at("dispatcher"), "all_gather");
  EXPECT_EQ(json.at("dtype"), "bf16");
  EXPECT_EQ(json.at("linear"), "bf16");
  EXPECT_EQ(json.at("experts"), "bf16");
  EXPECT_TRUE(json.at("steps").is_number_integer());
  EXPECT_TRUE(json.at("tokens_per_second").is_number_float());
  ASSERT_EQ(json.at("par_per_layer").size(), 4U);
  for (const Json& par : json.at("par_per_layer")) EXPECT_TRUE(par >= 1.0 && par <= 2.0) << par;
  const std::vector<std::string> prompts = lines(read_file(kTinyMoe + "/prompts.txt"));
  ASSERT_EQ(json.at("outputs").size(), prompts.size());
  size_t tokens = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json& output = json.at("outputs")[i];
    EXPECT_EQ(output.at("prompt"), prompts[i]);
    EXPECT_EQ(output.at("prompt_tokens"), prompts[i].size() + 1);
    EXPECT_TRUE(output.at("text").is_string());
    const auto ids = output.at("token_ids").get<std::vector<int>>();
    EXPECT_LE(ids.size(), 6U);
    tokens += ids.size();
  }
  EXPECT_EQ(json.at("tokens"), tokens);
}

TEST(Run, TracesEveryPick) {
  const Scratch scratch;
  const std::string file = scratch.file("trace.npy");
  const Outcome run =
      trimtab("run " + kTinyMoe + " --json --ranks 3 --steps 4 --trace-out " + file);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  const NpyArray trace = read_npy(file);
  EXPECT_EQ(trace.dtype, DType::kI32);
  ASSERT_EQ(trace.shape, (std::vector<int64_t>{json.at("steps"), 4, 32}));
  std::vector<int32_t> counts(trace.data.size() / sizeof(int32_t));
  std::memcpy(counts.data(), trace.data.data(), trace.data.size());
  int64_t all = 0;
  for (size_t step = 0; step < counts.size(); step += 4 * 32) {
    std::vector<int64_t> layers(4);
    for (size_t i = 0; i < 4 * 32; ++i) layers[i / 32] += counts[step + i];
    EXPECT_EQ(layers, std::vector<int64_t>(4, layers[0]))
        << "a layer routed more tokens than another";
    all += layers[0];
  }
  int64_t fed = json.at("prompt_tokens");
  for (const Json& output : json.at("outputs"))
    fed += static_cast<int64_t>(output.at("token_ids").size()) - 1;
  EXPECT_EQ(all, fed * 4);
}

// R13: the routes of one run, replayed in another: the same text where all else is the same, and
// the same routes where weights are rounded otherwise.
TEST(Run, RoutesAreReplayed) {
  const Scratch scratch;
  const std::string first = scratch.file("first.npy"), again = scratch.file("again.npy");
  const std::string command = kTinyMoe + " --json --steps 6 ";
  const auto outputs = [](const std::string& options) {
    const Outcome run = trimtab(options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("outputs");
  };
  const Json written = outputs("run " + command + "--ranks 2 --routes-out " + first);
  const NpyArray routes = read_npy(first);
  EXPECT_EQ(routes.dtype, DType::kI32);
  ASSERT_EQ(routes.shape.size(), 4U);
  EXPECT_EQ(routes.shape[0], std::ssize(written));
  EXPECT_EQ(routes.shape[2], 4);
  EXPECT_EQ(routes.shape[3], 4);
  EXPECT_EQ(outputs("run " + command + "--ranks 3 --routes-in " + first), written);
  // Of the prompts alone, so that both runs have the same positions.
  const std::string prompts = "run " + kTinyMoe + " --json --steps 1 --routes-out ";
  outputs(prompts + first + " --token-ids '256,84,104;256,65'");
  outputs(prompts + again + " --token-ids '256,84,104;256,65' --dtype bf16 --routes-in " + first);
  EXPECT_EQ(read_npy(again).data, read_npy(first).data);
  const Outcome wrong = trimtab("run " + command + "--routes-in " + first);
  EXPECT_EQ(wrong.status, 1);
  EXPECT_TRUE(contains(wrong.err, "--routes-in wants int32")) << wrong.err;
}

TEST(Run, KeepsKeysAndValuesInOtherFormats) {
  const auto run_with = [](const std::string& kv) {
    const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 8 --ranks 2 --kv " + kv);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out, nullptr, false);
  };
  const Json exact = run_with("f32"), half = run_with("bf16"), quarter = run_with("i8");
  EXPECT_EQ(half.at("kv"), "bf16");
  const auto bytes = [](const Json& json) { return json.at("kv_bytes_per_token").get<int64_t>(); };
  EXPECT_EQ(bytes(exact), 2 * bytes(half));
  EXPECT_LT(bytes(quarter), bytes(half));
  // Greedy text of a trained model survives the rounding to bf16.
  EXPECT_EQ(half.at("outputs")[0], exact.at("outputs")[0]);
}

// --dtype auto: that of the checkpoint's embedding; f32 where it is neither f32 nor bf16.
TEST(Run, TheDtypeMayBeTheCheckpoints) {
  const auto run_here = [](const std::string& model, const std::string& dtype) {
    const Outcome run = trimtab(
        "run " + model + " --json --steps 4 --ranks 2 --token-ids '1,2,3;4' --dtype " + dtype);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json found = run_here(kTinyMoe, "auto");
  EXPECT_EQ(found.at("dtype"), "bf16");
  EXPECT_EQ(found.at("experts"), "bf16");
  EXPECT_EQ(found.at("outputs"), run_here(kTinyMoe, "bf16").at("outputs"));
  EXPECT_EQ(run_here(kFixtures + "mixtral", "auto").at("dtype"), "f32");
  EXPECT_EQ(run_here(kFixtures + "qwen3_moe_fp8", "auto").at("dtype"), "bf16");
  const Scratch scratch;
  const std::string packed = scratch.file("packed");
  const Outcome pack = trimtab("pack " + kTinyMoe + " " + packed + " --dtype auto --json");
  ASSERT_EQ(pack.status, 0) << pack.err;
  EXPECT_EQ(Json::parse(pack.out).at("dtype"), "bf16");
  EXPECT_EQ(run_here(packed, "auto").at("outputs"), found.at("outputs"));
}

// 20,000 prompts of up to 2,000 new tokens are 10 million steps of 512 bytes of counts each, which
// nobody asked to keep. The run is ended once it steps.
TEST(Run, MemoryDoesNotGrowWithTheStepsThatMayCome) {
  const Scratch scratch;
  std::string ids;
  for (int i = 0; i < 20'000; ++i) ids += "256 84\n";
  const std::string err = scratch.file("stderr");
  const std::string command = "ulimit -v 1500000; timeout -s INT 7 " TRIMTAB_BINARY " run " +
                              kTinyMoe + " --ranks 1 --max-sequences 1 --steps 2000 --token-ids " +
                              scratch.file("ids", ids) + " >/dev/null 2>" + err;
  const int status = WEXITSTATUS(std::system(command.c_str()));
  EXPECT_EQ(status, 124) << read_file(err);  // timeout ended it
  EXPECT_TRUE(contains(read_file(err), "\nstep ")) << read_file(err);
}

// With two cores at least two threads compute, unless the cores are shared out over ranks.
TEST(Run, TakesOneRankAndTheCoresThatItMayUse) {
  const auto sizes = [](const std::string& options) {
    const Outcome run = trimtab("run " + kTinyMoe + " --steps 1 --token-ids 1 --json" + options);
    const Json json = Json::parse(run.out);
    return std::pair<int, int>(json.at("ranks"), json.at("threads_per_rank"));
  };
  const int cores = usable_cores().count;
  EXPECT_EQ(sizes(""), std::pair(1, cores));
  EXPECT_EQ(sizes(" --ranks 2"), std::pair(2, std::max(1, cores / 2)));
  EXPECT_EQ(sizes(" --ranks 2 --threads-per-rank 3"), std::pair(2, 3));
}

// The wording is CLI11's in part, and differs between its versions.
TEST(Run, WrongUsageIsOneLineAndStatus2) {
  const std::vector<Failure> failures = {
      {"run", "MODEL"},
      {"run x --ranks 0", "--ranks"},
      {"run x --ranks two", "--ranks"},
      {"run x --steps 0", "--steps"},
      {"run x --timeout 0", "--timeout"},
      {"run x --threads-per-rank 0", "--threads-per-rank"},
      {"run x --dispatcher push",
       "--dispatcher: push not in {auto,all_gather,all_to_all,fused,hybrid,mc2,packed,pull}"},
      {"run x --wire f16", "--wire: f16 not in {f32,bf16,i8,mxfp8}"},
      {"run x --dtype f16", "--dtype: f16 not in {f32,bf16,auto}"},
      {"run x --kv f16", "unknown format of keys and values 'f16': choose one of f32, bf16, i8"},
      {"run x --temperature -1", "--temperature: -1 is not a number from 0 to 1000"},
      {"run x --temperature nan", "--temperature: nan is not a number from 0 to 1000"},
      {"run x --seed -1", "--seed: -1 is not a whole number from 0"},
      {"run x --seed 99999999999999999999999", "is not a whole number from 0 to 2^64 - 1"},
      {"run x --trace-out ''", "--trace-out: is empty"},
      {"run x --chrome-trace ''", "--chrome-trace: is empty"},
      {"run x --report ''", "--report: is empty"},
      {"run x --experts int3", "--experts: "},
      {"run x --force-balance --trace-out a", "--trace-out: with --force-balance nothing is "},
      {"run x --force-balance --routes-out a", "--routes-out: with --force-balance nothing is "},
      {"run x --force-balance --routes-in a", "--routes-in: with --force-balance nothing is "},
      {"run x --force-balance --report a", "--report: with --force-balance nothing is "},
      {"run x --force-balance --eplb dynamic", "--eplb: with --force-balance nothing is "},
      {"run x --force-balance --eplb record:a", "--eplb: with --force-balance nothing is "},
      {"run x --progress-thread", "--progress-thread: it has no effect where all ranks are on "},
      {"run x --eplb dynamc", "--eplb: must be off, static:FILE"},
      {"run x --eplb static:", "--eplb: static needs a file: static:FILE"},
      {"run x --seed 3", "--seed: it has no effect without --temperature"},
      {"run x --eplb-config a.json", "--eplb-config: it has no effect"},
      {"run x --metrics a.prom", "--metrics: it needs --eplb dynamic or screen"},
      {"run " + kTinyMoe + " --eplb dynamic",
       "--eplb dynamic: one rank has nothing to balance; say --ranks N"},
      {"run x --redundant-experts 1 --eplb static:a", "the placement of --eplb says it"},
      {"run " + kTinyMoe + " --ranks 4 --redundant-experts 97",
       "--redundant-experts: 97 is more than 96, with which each of 4 ranks holds all 32"},
      {"rum x", "there is no command rum"},
      {"run x --fast", "--fast"},
      {"run x --prompts a --token-ids 1", "excludes"},
  };
  for (const Failure& failure : failures) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, failure.arguments.starts_with("run") ? "(see trimtab run --help)"
                                                                    : "(see trimtab --help)"))
        << line;
  }
}

TEST(Run, FailuresAreOneLineAndStatus1) {
  const Scratch scratch;
  const std::string empty = scratch.file("empty", "");
  const std::string words = scratch.file("words", "1 2\n3 four\n");
  const std::vector<Failure> failures = {
      {"run " + kTinyMoe + " --prompts /nowhere", "/nowhere: can't be read"},
      {"run " + kTinyMoe + " --prompts /tmp", "/tmp: can't be read"},
      {"run " + kTinyMoe + " --prompts " + empty, empty + ": has no prompt (one a line)"},
      {"run " + kTinyMoe + " --token-ids ,", "--token-ids: prompt 1 is empty"},
      {"run " + kTinyMoe + " --token-ids " + words, words + ": \"four\" is not a token id"},
      {"run " + kTinyMoe + " --token-ids 99999999999",
       "--token-ids: \"99999999999\" is not a token id"},
      {"run " + kTinyMoe + " --token-ids '1;2 258'",
       "prompt 2 has token id 258, the vocabulary ends at 257"},
      {"run " + kTinyMoe + " --trace-out /nowhere/x.npy",
       "--trace-out /nowhere/x.npy can't be written: No such file or directory"},
      {"run " + kTinyMoe + " --chrome-trace /nowhere/x.json",
       "--chrome-trace /nowhere/x.json can't be written: No such file or directory"},
      {"run " + kTinyMoe + " --report /tmp", "--report /tmp can't be written: Is a directory"},
      {"run " + kFixtures + "olmoe", kFixtures + "olmoe has no byte-level vocabulary (64 tokens); "
                                                 "give its prompts as --token-ids, or text to "
                                                 "python -m trimtab.generate"},
      {"run " + kFixtures + "gpt_oss --token-ids 1",
       "the decoder supports mixtral, qwen2_moe, qwen3_moe and olmoe; this model is gpt_oss"},
  };
  for (const Failure& failure : failures) EXPECT_EQ(error_line(failure, 1), failure.message);
  EXPECT_TRUE(contains(error_line({"run /nowhere", ""}, 1), "/nowhere"));
}

TEST(Command, KnowsItsVersionAndTeaches) {
  const Outcome version = trimtab("--version");
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(contains(version.out, "trimtab 0.")) << version.out;
  const Outcome help = trimtab("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_EQ(trimtab("").out, help.out);
  EXPECT_EQ(trimtab("").status, 0);
  EXPECT_TRUE(contains(help.out, "run")) << help.out;
  const Outcome run_help = trimtab("run --help");
  EXPECT_EQ(run_help.status, 0);
  for (const char* part :
       {"--ranks", "--prompts", "--token-ids", "--steps", "--dispatcher", "--dtype", "--kv",
        "--threads-per-rank", "--timeout", "--seed", "--temperature", "--trace-out",
        "--chrome-trace", "--report", "--json", "Examples", "fused", "PAR, the peak-to-average"}) {
    EXPECT_TRUE(contains(run_help.out, part)) << part;
  }
}

}  // namespace
}  // namespace trimtab::cli
