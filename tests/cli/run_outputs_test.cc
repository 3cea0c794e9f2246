// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

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

// Weights, and keys and values of all positions, are read once in each decode step.
TEST(Run, CountsWhatDecodeStepsRead) {
  const auto report = [](const std::string& options) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --token-ids 7,8,9,10 --steps 6 --json " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json f32 = report("--ranks 1"), bf16 = report("--ranks 1 --kv bf16");
  ASSERT_EQ(f32.at("decode_tokens"), 5);
  // The first new token comes with the prompt; the next five steps see 5, 6, ... positions.
  const int64_t kv = f32.at("kv_bytes_per_token"), half = bf16.at("kv_bytes_per_token");
  EXPECT_EQ(int64_t{f32.at("decode_bytes")} - int64_t{bf16.at("decode_bytes")},
            (5 + 6 + 7 + 8 + 9) * (kv - half));
  EXPECT_EQ(report("--ranks 1 --threads-per-rank 2").at("decode_bytes"), f32.at("decode_bytes"));
  // Ranks without a sequence read experts alone, and slots that may move are the same experts.
  EXPECT_EQ(report("--ranks 3").at("decode_bytes"), f32.at("decode_bytes"));
  const double dynamic = report("--ranks 2 --eplb dynamic").at("decode_bytes");
  EXPECT_NEAR(dynamic, double{f32.at("decode_bytes")}, 0.02 * dynamic);
  EXPECT_EQ(report("--ranks 2 --tp 2").at("decode_bytes"), 0);
  const Outcome text = trimtab("run " + kTinyMoe + " --token-ids 7,8,9,10 --steps 6");
  EXPECT_TRUE(contains(text.out, " MB read for each: ")) << text.out;
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

}  // namespace
}  // namespace trimtab::cli
