// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/cores.h"
#include "observe/trace_checking.h"
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

// What does not fit the budget takes more rounds, and changes nothing that can be seen.
TEST(Run, TheRowBudgetChangesNoOutput) {
  const auto outputs = [](const std::string& budget) {
    const Outcome run = trimtab("run " + kTinyMoe + " --ranks 4 --steps 3 --json" + budget);
    EXPECT_EQ(run.status, 0) << run.err;
    const Json json = Json::parse(run.out);
    return Json{json.at("outputs"), json.at("rank_load"), json.at("steps")};
  };
  const Json whole = outputs(" --row-budget 0");
  EXPECT_EQ(outputs(""), whole);
  EXPECT_EQ(outputs(" --row-budget 0.02"), whole);
  EXPECT_EQ(trimtab("run " + kTinyMoe + " --row-budget -1").status, 2);
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

TEST(Run, TextDoesNotDependOnRanksAndFollowsTheSeed) {
  const auto outputs = [](const std::string& options) {
    const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 8 --temperature 2 " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("outputs");
  };
  const Json one = outputs("--ranks 1 --seed 3");
  EXPECT_EQ(outputs("--ranks 7 --threads-per-rank 2 --seed 3"), one);
  EXPECT_NE(outputs("--ranks 1 --seed 4"), one);
}

TEST(Run, StopsEndAnOutputWhichDoesNotShowThem) {
  const auto outputs = [](const std::string& options) {
    const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 60 " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out).at("outputs");
  };
  const Json full = outputs("");
  const Json stopped = outputs("--stop e --stop ' th' --stop-ids '116,104;32'");
  ASSERT_EQ(stopped.size(), full.size());
  for (size_t i = 0; i < full.size(); ++i) {
    const std::string text = full[i].at("text"), begin = stopped[i].at("text");
    const size_t end = std::min({text.find('e'), text.find(" "), text.find("th")});
    EXPECT_EQ(begin, text.substr(0, end)) << text;
    EXPECT_EQ(stopped[i].at("finish"), end == text.npos ? "steps" : "stop");
    EXPECT_EQ(stopped[i].at("token_ids").size() > begin.size(), end != text.npos);
  }
  EXPECT_EQ(
      error_line({"run " + kFixtures + "mixtral --token-ids 1 --stop x", ""}, 1),
      "--stop: " + kFixtures + "mixtral has no byte-level vocabulary (64 tokens); give --stop-ids");
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --stop-ids '5;300'", ""}, 1),
            "--stop-ids: token id 300, the vocabulary ends at 257");
}

TEST(Run, SamplesAsToldOrAsTheModelSays) {
  const auto json = [](const std::string& options) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --steps 6 --token-ids 256,84 " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  EXPECT_FALSE(json("").contains("sampling"));
  const Json as_model = json("--model-sampling --seed 4");
  EXPECT_NEAR(as_model.at("sampling").at("temperature").get<double>(), 0.7, 1e-6);
  EXPECT_EQ(as_model.at("outputs"), json("--temperature 0.7 --seed 4").at("outputs"));
  EXPECT_EQ(json("--model-sampling --temperature 3 --top-k 1").at("outputs"),
            json("").at("outputs"));  // the most likely token alone
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --top-p 0.5", ""}, 2),
            "--top-p: it has no effect without --temperature above 0 (see trimtab run --help)");
}

// What the outputs of a report are made of, without the speed.
std::string without_speed(const std::string& report) {
  std::string kept;
  for (const std::string& line : lines(report)) {
    if (!contains(line, "tokens/s")) kept += line + "\n";
  }
  return kept;
}

TEST(Run, StreamsWhatTheReportShows) {
  const Scratch scratch;
  const std::string prompts = scratch.file("prompts", "The evening\nВыберите\n\nimport os\n");
  for (const char* options : {"--ranks 1", "--ranks 3", "--ranks 2 --stop 'the ' --temperature 0.9",
                              "--max-sequences 1"}) {
    const std::string command =
        "run " + kTinyMoe + " --steps 40 --prompts " + prompts + " " + options;
    const Outcome whole = trimtab(command), streamed = trimtab(command + " --stream");
    ASSERT_EQ(streamed.status, 0) << streamed.err;
    EXPECT_EQ(without_speed(streamed.out), without_speed(whole.out));
  }
  const std::string ids = "run " + kFixtures + "mixtral --steps 9 --token-ids '5,6;7'";
  EXPECT_EQ(without_speed(trimtab(ids + " --stream").out), without_speed(trimtab(ids).out));
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --stream --json", ""}, 2),
            "--stream: --json is one object, at the end (see trimtab run --help)");
}

// Ctrl-C while tokens come: the output so far is shown, and the files are written.
TEST(Run, AnInterruptedRunShowsWhatThereIs) {
  const Scratch scratch;
  const std::string trace = scratch.file("trace.npy");
  std::string many;  // far more than a test would wait for
  for (int i = 0; i < 3000; ++i) many += "The\n";
  const std::string prompts = scratch.file("prompts", many);
  int from_child[2];
  ASSERT_EQ(pipe(from_child), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(from_child[1], STDOUT_FILENO);
    close(from_child[0]);
    execl(TRIMTAB_BINARY, "trimtab", "run", kTinyMoe.c_str(), "--prompts", prompts.c_str(),
          "--steps", "500", "--max-sequences", "1", "--ranks", "2", "--stream", "--trace-out",
          trace.c_str(), nullptr);
    _exit(127);
  }
  close(from_child[1]);
  std::string seen;
  char buffer[4096];
  bool told = false;
  for (ssize_t n = 0; (n = read(from_child[0], buffer, sizeof buffer)) > 0;) {
    seen.append(buffer, n);
    if (told || !contains(seen, "[1] The\n  | ")) continue;
    kill(child, SIGINT);
    told = true;
  }
  close(from_child[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(told) << seen;
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_TRUE(contains(seen, "[3000] The\n")) << "the prompts that never began are shown too";
  EXPECT_TRUE(contains(seen, "\n  (interrupted)\n")) << seen;
  EXPECT_TRUE(contains(seen, " new tokens in ")) << seen;
  EXPECT_FALSE(read_file(trace).empty());
}

TEST(Run, TakesTokenIds) {
  const Scratch scratch;
  const std::string file = scratch.file("ids", "1 2 3;\n5,6\n");
  for (const std::string& ids : {std::string("'1,2,3; 5 6'"), file}) {
    const Outcome run = trimtab("run " + kFixtures + "mixtral --json --steps 3 --token-ids " + ids);
    ASSERT_EQ(run.status, 0) << run.err;
    const Json outputs = Json::parse(run.out).at("outputs");
    ASSERT_EQ(outputs.size(), 2U);
    EXPECT_EQ(outputs[0].at("prompt"), "1,2,3");
    EXPECT_EQ(outputs[0].at("prompt_tokens"), 3);
    EXPECT_EQ(outputs[1].at("prompt"), "5,6");
    EXPECT_EQ(outputs[1].at("text"), "");
    EXPECT_GE(outputs[1].at("token_ids").size(), 1U);
  }
  // Byte-level models have text for them as well; nothing is put in front.
  const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 3 --token-ids 256,84");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).at("outputs")[0].at("prompt_tokens"), 2);
  EXPECT_NE(Json::parse(run.out).at("outputs")[0].at("text"), "");
}

TEST(Run, EmptyPromptsKeepTheirPlace) {
  const Scratch scratch;
  const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 2 --prompts " +
                              scratch.file("prompts", "first\n\nthird\n"));
  ASSERT_EQ(run.status, 0) << run.err;
  const Json outputs = Json::parse(run.out).at("outputs");
  ASSERT_EQ(outputs.size(), 3U);
  EXPECT_EQ(outputs[1].at("prompt"), "");
  EXPECT_EQ(outputs[1].at("prompt_tokens"), 1);  // the token that begins each text
  EXPECT_EQ(outputs[2].at("prompt"), "third");
  // Token ids are taken as they are, so that nothing stands for an empty prompt.
  const std::string file = scratch.file("ids", "1 2\n\n3\n");
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --token-ids '1;;2'", ""}, 1),
            "--token-ids: prompt 2 is empty");
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --token-ids " + file, ""}, 1),
            file + ": prompt 2 is empty");
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

// What the trace of every rank must hold; what depends on timing is left out.
void expect_run_in_trace(const std::string& text, const Json& run) {
  const CheckedTrace trace = check_trace(text);
  const int ranks = run.at("ranks");
  const int64_t steps = run.at("steps"), layers = 4;
  ASSERT_EQ(std::ssize(trace.processes), ranks);
  ASSERT_EQ(std::ssize(trace.threads), ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(trace.processes.at(rank), "rank " + std::to_string(rank));
    EXPECT_EQ(trace.threads.at({rank, 0}), "steps");
    const auto& slices = trace.slices.at({rank, 0});
    for (const char* of_step : {"step", "embedding", "head", "sampling"})
      EXPECT_EQ(slices.at(of_step), steps) << of_step;
    EXPECT_EQ(slices.at("agreement"), steps + 1);
    for (const char* of_layer : {"moe", "route", "dispatch", "experts", "combine", "sort rows"}) {
      EXPECT_EQ(slices.at(of_layer), steps * layers) << of_layer;
    }
    int64_t rows = 0;
    for (const Json& load : run.at("rank_load")) rows += load.at(rank).get<int64_t>();
    EXPECT_EQ(trace.counters.at(rank).at("expert rows"), rows);
  }
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

TEST(Run, WritesAChromeTrace) {
  const Scratch scratch;
  const std::string file = scratch.file("trace.json");
  for (const std::string dispatcher : {"pull", "packed"}) {
    const Outcome run = trimtab("run " + kTinyMoe + " --json --ranks 3 --steps 8 --dispatcher " +
                                dispatcher + " --threads-per-rank 2 --chrome-trace " + file);
    ASSERT_EQ(run.status, 0) << run.err;
    expect_run_in_trace(read_file(file), Json::parse(run.out));
  }
}

// The same command on processes: `script RANKS trimtab run ...`; null when the script skips, or the
// build has no MPI.
Json run_under(const std::string& script, const std::string& options) {
  if (!kHasMpi) return nullptr;
  const Scratch scratch;
  const std::string out = scratch.file("stdout");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/" + script + " " +
                              TRIMTAB_BINARY + " run " + kTinyMoe +
                              " --json --steps 8 --temperature 2 --seed 3 " + options + " >" + out;
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) return nullptr;
  EXPECT_EQ(status, 0) << read_file(out);
  return Json::parse(read_file(out), nullptr, false);
}

void expect_same_run(const Json& processes, const Json& threads) {
  for (const char* key : {"outputs", "ranks", "steps", "tokens", "par_per_layer", "rank_load"}) {
    EXPECT_EQ(processes.at(key), threads.at(key)) << key;
  }
}

TEST(Run, ProcessesGiveWhatThreadsGive) {
  for (const std::string dispatcher : {"pull", "all_gather", "packed", "hybrid"}) {
    const Scratch scratch;
    const std::string options = "--dispatcher " + dispatcher + " --trace-out " +
                                scratch.file("trace.npy") + " --chrome-trace " +
                                scratch.file("trace.json");
    const Json processes = run_under("mpi/run.sh 4", options);
    if (processes.is_null()) GTEST_SKIP() << "needs MPI and mpiexec";
    const std::string trace = read_file(scratch.file("trace.npy"));
    if (dispatcher != "hybrid")
      expect_run_in_trace(read_file(scratch.file("trace.json")), processes);
    const Outcome threads = trimtab(
        "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 4 " + options);
    ASSERT_EQ(threads.status, 0) << threads.err;
    expect_same_run(processes, Json::parse(threads.out));
    EXPECT_EQ(trace, read_file(scratch.file("trace.npy")));
  }
}

// Each dispatcher that works over hosts, and what auto takes there, with one slot for each expert
// and with replicas: the text is that of one rank.
TEST(Run, SeveralHostsGiveWhatThreadsAndOneRankGive) {
  const std::string sampled = "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 ";
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(sampled + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out, nullptr, false);
  };
  const Json alone = run_here("--ranks 1");
  for (const std::string dispatcher :
       {"auto", "all_gather", "all_to_all", "mc2", "packed", "hybrid"}) {
    for (const bool replicas : {false, true}) {
      SCOPED_TRACE(dispatcher + (replicas ? ", replicas" : ""));
      const Scratch scratch;
      const std::string options = "--dispatcher " + dispatcher +
                                  (replicas ? " --redundant-experts 12" : "") + " --chrome-trace " +
                                  scratch.file("trace.json");
      const Json processes = run_under("hosts/run.sh 2 2 full", options);
      if (processes.is_null()) GTEST_SKIP() << "needs MPI, Open MPI's mpiexec and namespaces";
      ASSERT_TRUE(processes.is_object());
      EXPECT_EQ(processes.at("outputs"), alone.at("outputs"));
      EXPECT_EQ(processes.at("ranks"), 4);
      const std::string used = processes.at("dispatcher");
      EXPECT_EQ(used, dispatcher != "auto" ? dispatcher : "hybrid");
      const bool shares = used != "all_gather" && used != "mc2";
      EXPECT_EQ(processes.value("split", ""), !replicas ? "" : shares ? "split" : "static");
      if (used != "hybrid") expect_run_in_trace(read_file(scratch.file("trace.json")), processes);
      // How picks are shared out over replicas depends on the hosts.
      if (!replicas) expect_same_run(processes, run_here("--ranks 4 " + options));
    }
  }
}

// Layouts: the text of one rank, on threads, processes and hosts. Parts of experts change the order
// of additions, so their text is that of greedy sampling here.
TEST(Run, LayoutsGiveTheTextOfOneRank) {
  const std::string greedy = "run " + kTinyMoe + " --json --steps 8 ";
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(greedy + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out, nullptr, false);
  };
  const Json alone = run_here("--ranks 1").at("outputs");
  for (const std::string layout :
       {"--tp 2", "--tp 2 --dp 2 --dispatcher all_to_all", "--dp 2 --pcp 2", "--tp 4 --no-sp",
        "--tp 2 --dp 2 --no-ep", "--tp 4 --no-ep", "--tp 2 --pcp 2 --no-ep",
        "--tp 2 --eplb dynamic", "--tp 2 --weights w8a8 --ranks 2", "--ranks 6 --tp 3"}) {
    SCOPED_TRACE(layout);
    const Json run = run_here(layout);
    ASSERT_TRUE(run.is_object());
    const Json& said = run.at("layout");
    EXPECT_EQ(said.at("ep"), !contains(layout, "--no-ep"));
    EXPECT_EQ(said.at("tp").get<int>() * said.at("dp").get<int>() * said.at("pcp").get<int>(),
              run.at("ranks"));
    if (contains(layout, "w8a8")) {
      EXPECT_EQ(run.at("outputs"), run_here("--ranks 1 --weights w8a8").at("outputs"));
    } else {
      EXPECT_EQ(run.at("outputs"), alone);
    }
  }
  const Outcome text =
      trimtab("run " + kTinyMoe + " --steps 1 --tp 2 --dp 2 --no-ep --threads-per-rank 1");
  EXPECT_TRUE(contains(text.out, "4 ranks (tp 2 x dp 2, experts in parts) x 1 thread")) << text.out;
  EXPECT_TRUE(contains(text.out, ", summed, f32")) << text.out;
}

TEST(Run, LayoutsOnProcessesAndHostsGiveWhatThreadsGive) {
  for (const std::string layout :
       {"--tp 2", "--tp 4 --no-sp", "--tp 2 --dp 2 --no-ep", "--dp 2 --pcp 2"}) {
    for (const std::string script : {"mpi/run.sh 4", "hosts/run.sh 2 2 full"}) {
      SCOPED_TRACE(layout + ", " + script);
      const Json processes = run_under(script, layout);
      if (processes.is_null()) continue;
      ASSERT_TRUE(processes.is_object());
      const Outcome threads = trimtab(
          "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 4 " + layout);
      ASSERT_EQ(threads.status, 0) << threads.err;
      const Json here = Json::parse(threads.out);
      for (const char* key : {"outputs", "ranks", "layout", "steps", "tokens", "rank_load"})
        EXPECT_EQ(processes.at(key), here.at(key)) << key;
    }
  }
}

// --wire: what travels between ranks, in all ways of running them. Threads count what processes
// send.
TEST(Run, WireTypesSendFewerBytes) {
  const std::string options = "--dispatcher packed --wire ";
  const auto wire_of = [&](const std::string& type) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 2 " +
                options + type);
    EXPECT_EQ(run.status, 0) << run.err;
    const Json wire = Json::parse(run.out).at("wire");
    EXPECT_EQ(wire.at("rows"), type);
    EXPECT_EQ(wire.at("results"), type);
    EXPECT_EQ(wire.at("bytes_between_hosts"), 0);
    return wire.at("bytes").get<double>();
  };
  const double f32 = wire_of("f32"), i8 = wire_of("i8");
  EXPECT_LE(i8, 0.3 * f32);
  EXPECT_LE(wire_of("mxfp8"), 0.3 * f32);
  EXPECT_LE(wire_of("bf16"), 0.55 * f32);
  EXPECT_GT(wire_of("bf16"), 0.45 * f32);
  for (const std::string type : {"f32", "i8"}) {
    const Json hosts = run_under("hosts/run.sh 2 1 full", options + type);
    if (hosts.is_null()) continue;
    const Json& wire = hosts.at("wire");
    EXPECT_EQ(wire.at("rows"), type);
    EXPECT_EQ(wire.at("bytes_between_hosts"), wire.at("bytes"));
    EXPECT_LE(wire.at("bytes").get<double>(), (type == "i8" ? 0.3 : 1.01) * f32);
  }
  const Outcome text = trimtab("run " + kTinyMoe + " --steps 2 --ranks 2 " + options + "i8");
  EXPECT_TRUE(contains(text.out, "rows as i8, results as i8, ")) << text.out;
  EXPECT_TRUE(contains(text.out, " MB sent to other ranks (0.000 between hosts)")) << text.out;
}

// Every row is rounded, also where it stays: with a dispatcher that keeps the order, the text is
// that of one rank, on threads and processes.
TEST(Run, WireTypesGiveTheTextOfOneRank) {
  const auto run_here = [](const std::string& options) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  for (const std::string options :
       {"--dispatcher all_to_all --wire i8", "--dispatcher mc2 --wire bf16",
        "--dispatcher all_to_all --wire mxfp8 --experts w8a8"}) {
    SCOPED_TRACE(options);
    const Json alone = run_here("--ranks 1 " + options), four = run_here("--ranks 4 " + options);
    EXPECT_EQ(alone.at("outputs"), four.at("outputs"));
    EXPECT_EQ(alone.at("wire").at("bytes"), 0);
    const Json processes = run_under("mpi/run.sh 4", options);
    if (processes.is_null()) continue;
    EXPECT_EQ(processes.at("outputs"), four.at("outputs"));
    EXPECT_EQ(processes.at("wire"), four.at("wire"));
  }
  // auto takes what can send; without --wire all is as it was.
  EXPECT_EQ(run_here("--ranks 2 --wire i8").at("dispatcher"), "packed");
  const Json usual = run_here("--ranks 2 --experts w8a8");
  EXPECT_EQ(usual.at("dispatcher"), "pull");
  EXPECT_EQ(usual.at("wire"),
            (Json{{"rows", "bf16"}, {"results", "f32"}, {"bytes", 0}, {"bytes_between_hosts", 0}}));
  EXPECT_EQ(run_here("--ranks 2 --dispatcher pull --wire f32").at("outputs"),
            run_here("--ranks 1").at("outputs"));
}

TEST(Run, DispatchersThatSendNoResultsRefuseOtherWireTypes) {
  for (const std::string name : {"pull", "fused", "all_gather"}) {
    const std::string line =
        error_line({"run " + kTinyMoe + " --ranks 2 --wire i8 --dispatcher " + name, ""}, 1);
    EXPECT_EQ(line,
              name + " can't send results as I8, only all_to_all, hybrid, mc2 and packed can");
  }
  EXPECT_TRUE(contains(error_line({"run " + kTinyMoe + " --tp 2 --no-ep --wire i8", ""}, 1),
                       "its ranks sum parts, which travel as F32, not as I8"));
}

// R12: forced balance for profile runs: random distinct logical experts, weights as routed; never
//     recorded: not by the balancer, the recorder, --trace-out or --routes-out.
TEST(Run, ForceBalanceLevelsRanksAndRecordsNothing) {
  const Scratch scratch;
  const std::string trace = scratch.file("trace.json");
  const std::string command =
      "run " + kTinyMoe + " --json --ranks 4 --steps 40 --chrome-trace " + trace;
  // The busiest rank's rows over the mean, as the counters of the trace have them.
  const auto peak = [&](const Json& json) {
    const CheckedTrace checked = check_trace(read_file(trace));
    std::vector<int64_t> rows;
    for (const auto& [rank, counters] : checked.counters)
      rows.push_back(counters.at("expert rows"));
    EXPECT_EQ(rows.size(), 4U) << json;
    const auto sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    return 4.0 * static_cast<double>(std::ranges::max(rows)) / static_cast<double>(sum);
  };
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(command + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json plain = run_here("");
  EXPECT_EQ(plain.at("force_balance"), false);
  const double routed = peak(plain);
  const Json forced = run_here(" --force-balance");
  EXPECT_EQ(forced.at("force_balance"), true);
  const double level = peak(forced);
  // Of 12,000 picks each rank gets a quarter, give or take 50. If all ranks or steps drew the same
  // experts it were as uneven as routed.
  EXPECT_LT(level, 1.05);
  EXPECT_LT(level, routed);
  EXPECT_EQ(forced.at("par_per_layer"), Json::array());
  EXPECT_EQ(forced.at("rank_load"), Json::array());
  EXPECT_NE(forced.at("outputs"), plain.at("outputs"));
  EXPECT_EQ(run_here(" --force-balance").at("outputs"), forced.at("outputs"));
  const Outcome text = trimtab("run " + kTinyMoe + " --ranks 2 --steps 2 --force-balance");
  EXPECT_TRUE(contains(text.out, "profile run (--force-balance): ")) << text.out;
  EXPECT_FALSE(contains(text.out, "busiest rank")) << text.out;
  const Json processes = run_under("mpi/run.sh 4", "--force-balance");
  if (processes.is_null()) return;
  const Outcome threads = trimtab("run " + kTinyMoe +
                                  " --json --steps 8 --temperature 2 --seed 3 --ranks 4 "
                                  "--force-balance");
  EXPECT_EQ(processes.at("outputs"), Json::parse(threads.out).at("outputs"));
  EXPECT_EQ(processes.at("rank_load"), Json::array());
}

// Over hosts a thread of each process moves messages on; the text is the same.
TEST(Run, ProgressThreadsChangeNoText) {
  const Json with = run_under("hosts/run.sh 2 1 full", "--progress-thread --dispatcher packed");
  if (with.is_null()) GTEST_SKIP() << "needs MPI, Open MPI's mpiexec and namespaces";
  EXPECT_EQ(with.at("progress_thread"), true);
  const Outcome threads = trimtab("run " + kTinyMoe +
                                  " --json --steps 8 --temperature 2 --seed 3 --ranks 2 "
                                  "--dispatcher packed");
  ASSERT_EQ(threads.status, 0) << threads.err;
  const Json here = Json::parse(threads.out);
  EXPECT_EQ(here.at("progress_thread"), false);
  expect_same_run(with, here);
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

TEST(Run, LayoutsThatCannotBeAreRefused) {
  const std::string few = "run " + kTinyMoe + " --steps 1 ";
  const auto refused = [&](const std::string& arguments, int status) {
    const Outcome run = trimtab(few + arguments);
    EXPECT_EQ(run.status, status) << arguments << run.err;
    return run.err;
  };
  EXPECT_TRUE(contains(refused("--ranks 4 --tp 3", 1), "4 ranks are not a multiple of tp 3"));
  EXPECT_TRUE(contains(refused("--ranks 4 --tp 2 --dp 3", 1), "are not 4 ranks"));
  EXPECT_TRUE(contains(refused("--tp 2 --dp 2 --no-sp", 1), "one tensor-parallel group"));
  EXPECT_TRUE(contains(refused("--no-ep", 2), "--no-ep: it has no effect without --tp"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --no-sp", 2), "--no-sp: it has no effect"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --eplb dynamic", 2), "--eplb: with --no-ep"));
  EXPECT_TRUE(
      contains(refused("--tp 2 --no-ep --trace-out x.npy", 2), "--trace-out: with --no-ep"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --dispatcher pull", 1), "takes dispatcher auto"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-sp --redundant-experts 2 --split static", 1),
                       "replicas can't share out"));
  EXPECT_TRUE(contains(refused("--tp 4 --no-ep --weights mxfp8", 1), "can't be cut into 4 parts"));
}

TEST(Run, OtherRanksThanMpiexecStartedAreRefused) {
  if (!kHasMpi) GTEST_SKIP() << "needs MPI";
  const Scratch scratch;
  const std::string err = scratch.file("stderr");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 2 " +
                              TRIMTAB_BINARY + " run " + kTinyMoe + " --ranks 3 2>" + err +
                              " >/dev/null";
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) GTEST_SKIP() << "needs mpiexec";
  EXPECT_EQ(status, 1);
  EXPECT_TRUE(contains(read_file(err),
                       "trimtab: --ranks 3, but mpiexec has started 2 processes, a rank each"))
      << read_file(err);
}

// Two processes, a rank each, with arguments of their own.
Outcome run_two(const std::string& first, const std::string& second) {
  const Scratch scratch;
  const std::string out = scratch.file("stdout"), err = scratch.file("stderr");
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpiexec "
      "--oversubscribe --mca mpi_yield_when_idle 1 -n 1 " TRIMTAB_BINARY " " +
      first + " : -n 1 " TRIMTAB_BINARY " " + second + " >" + out + " 2>" + err;
  const int status = WEXITSTATUS(std::system(command.c_str()));
  return {status, read_file(out), read_file(err)};
}

TEST(Run, RanksThatWereStartedDifferentlyAreToldHow) {
  if (!kHasMpi || std::system("mpiexec --version 2>&1 | grep -q 'Open MPI\\|OpenRTE'") != 0)
    GTEST_SKIP() << "needs Open MPI";
  const Scratch scratch;
  const std::string copy = scratch.file("model");
  std::filesystem::copy(kTinyMoe, copy);
  const std::string config = read_file(copy + "/config.json");
  scratch.file("model/config.json", config + "\n");
  const std::string two = scratch.file("two", "a\nb\n"), other = scratch.file("other", "a\nc\n");
  const std::string with = "run " + kTinyMoe + " --timeout 10 --steps 5 ";
  struct Case {
    std::string first, second, named;
  };
  for (const Case& one : std::vector<Case>{
           {with, "run " + kTinyMoe + " --timeout 10 --steps 9",
            "--steps: 5 on rank 0, 9 on rank 1"},
           {with, with + "--max-sequences 1", "--max-sequences: 0 on rank 0, 1 on rank 1"},
           {with + "--token-ids '1;2;3'", with + "--token-ids 1", "the prompts"},
           {with + "--prompts " + two, with + "--prompts " + other, "the prompts"},
           {with, with + "--wire i8", "--wire: not given on rank 0, i8 on rank 1"},
           {with, with + "--eplb dynamic", "--eplb: off on rank 0, dynamic on rank 1"},
           {with, with + "--report " + scratch.file("page"), "--report: not given on rank 0"},
           {with, "run " + copy + " --timeout 10 --steps 5", "config.json of the model"}}) {
    const Outcome run = run_two(one.first, one.second);
    EXPECT_EQ(run.out, "") << one.second;
    EXPECT_NE(run.status, 0) << one.second;
    EXPECT_TRUE(contains(run.err, "trimtab: the ranks were started differently: ")) << run.err;
    EXPECT_TRUE(contains(run.err, one.named)) << run.err;
    EXPECT_FALSE(contains(run.err, "Signal: ")) << run.err;
  }
  // What is a rank's own affair may differ.
  EXPECT_EQ(run_two(with, with + "--threads-per-rank 2 --json").status, 0);
  // What the checkpoint says is found before the ranks compare.
  EXPECT_EQ(run_two(with + "--dtype auto", with + "--dtype bf16").status, 0);
}

// Each would be a whole run that writes the same files.
TEST(Run, OneOfSeveralProcessesThatMpiDoesNotBringTogetherRefuses) {
  for (const char* started :
       {"PMI_RANK=1 PMI_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0",
        "SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_PROCID=0"}) {
    const Scratch scratch;
    const std::string err = scratch.file("stderr"), trace = scratch.file("trace.npy");
    const std::string command = "env " + std::string(started) + " " TRIMTAB_BINARY " run " +
                                kTinyMoe + " --steps 1 --trace-out " + trace + " >/dev/null 2>" +
                                err;
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1) << started;
    EXPECT_TRUE(contains(read_file(err), "a launcher (mpiexec, srun) has started several"))
        << started;
    EXPECT_TRUE(contains(read_file(err), kHasMpi ? "is not the MPI of the launcher" : "libopenmpi"))
        << read_file(err);
    EXPECT_FALSE(std::filesystem::exists(trace));
  }
  // A batch script is one process, and so is one that mpiexec starts alone.
  for (const char* alone :
       {"SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0"}) {
    const std::string command = "env " + std::string(alone) + " " TRIMTAB_BINARY " run " +
                                kTinyMoe + " --steps 1 >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << alone;
  }
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

TEST(Run, AModelWithoutPromptsAsksForThem) {
  const Scratch scratch;
  const std::string config = scratch.file("config.json", read_file(kTinyMoe + "/config.json"));
  const std::string model = config.substr(0, config.rfind('/'));
  EXPECT_EQ(error_line({"run " + model, ""}, 1),
            model + "/prompts.txt does not exist; give --prompts or --token-ids");
  scratch.file("tokenizer.json", "{}");
  EXPECT_EQ(
      error_line({"run " + model, ""}, 1),
      model +
          " has no byte-level vocabulary (258 tokens); give its prompts as --token-ids, or text to "
          "python -m trimtab.generate");
}

TEST(Run, AFullDiskIsAnError) {
  const int status = std::system((std::string(TRIMTAB_BINARY) + " run " + kTinyMoe +
                                  " --steps 1 --token-ids 1 >/dev/full 2>/dev/null")
                                     .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST(Run, ProgressIsPlainLinesWithoutATerminal) {
  const Outcome run = trimtab("run " + kTinyMoe + " --json --steps 2 --token-ids 1");
  EXPECT_EQ(lines(run.err),
            (std::vector<std::string>{"loading " + kTinyMoe, "2 new tokens in 2 steps"}));
}

TEST(Run, ProgressIsOneOverprintedLineOnATerminal) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child < 0) GTEST_SKIP() << "needs a pseudo-terminal";
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    execl(TRIMTAB_BINARY, "trimtab", "run", kTinyMoe.c_str(), "--steps", "2", "--token-ids", "1",
          nullptr);
    _exit(127);
  }
  std::string seen;
  char buffer[4096];
  // The end of a terminal without processes is an error (EIO) on Linux.
  for (ssize_t n = 0; (n = read(terminal, buffer, sizeof buffer)) > 0;) seen.append(buffer, n);
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  const size_t cleared = seen.rfind("\r\x1b[K");
  ASSERT_NE(cleared, std::string::npos) << seen;
  const std::string progress = seen.substr(0, cleared);
  EXPECT_EQ(progress.substr(0, 9), "\rloading ");
  EXPECT_FALSE(contains(progress, "\n")) << progress;
  EXPECT_TRUE(contains(seen.substr(cleared), "[1] 1\r\n")) << seen;
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
