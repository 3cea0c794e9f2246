// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"
#include "trimtab/npy.h"
#include "trimtab/table.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

TEST(Convert, LoadsThroughEveryFormatAndBack) {
  const Scratch scratch;
  const std::string first = scratch.file("first.csv", "0,0,0,4\n0,0,1,5\n1,0,0,6\n1,0,1,7\n");
  std::string file = first;
  for (const std::string to : {"npy", "json", "sglang", "vllm", "csv"}) {
    const std::string next = scratch.file("next_" + to);
    const Outcome run = trimtab("convert " + file + " " + next + " --json --to " + to);
    ASSERT_EQ(run.status, 0) << run.err;
    const Json json = Json::parse(run.out);
    EXPECT_EQ(json.at("in"), file);
    EXPECT_EQ(json.at("out"), next);
    EXPECT_EQ(json.at("to"), to);
    EXPECT_EQ(json.at("kind"), "loads");
    EXPECT_EQ(json.at("steps"), 2);
    EXPECT_EQ(json.at("layers"), 1);
    EXPECT_EQ(json.at("experts"), 2);
    file = next;
  }
  EXPECT_TRUE(contains(read_file(file), read_file(first))) << read_file(file);
}

TEST(Convert, PlacementByTheEndOfTheName) {
  const Scratch scratch;
  const std::string first =
      scratch.file("first.json", R"({"format": "trimtab_placement", "version": 1,
    "slots_per_rank": [2, 2], "physical_to_logical_map": [[0, 1, 2, 0]]})");
  const std::string yaml = scratch.file("x.yaml"), npy = scratch.file("x.npy"),
                    last = scratch.file("last.json");
  const Outcome run = trimtab("convert " + first + " " + yaml);
  EXPECT_EQ(run.out, first + " (json) -> " + yaml +
                         " (trtllm): placement of 1 layers x 3 experts in 4 slots on 2 ranks\n");
  EXPECT_EQ(trimtab("convert " + yaml + " " + npy + " --ranks 2").status, 0);
  EXPECT_EQ(trimtab("convert " + npy + " " + last + " --ranks 2 --kind placement").status, 0);
  EXPECT_EQ(Json::parse(read_file(last)).at("physical_to_logical_map"),
            Json::parse("[[0, 1, 2, 0]]"));
  // Only a placement can become an expert_map.json, only loads can become CSV.
  EXPECT_EQ(
      trimtab("convert " + npy + " " + scratch.file("map.json") + " --ranks 2 --to vllm-ascend")
          .status,
      0);
  EXPECT_EQ(trimtab("convert " + npy + " " + scratch.file("x.csv")).status, 0);
}

#ifdef TRIMTAB_HAS_XZ
TEST(Convert, UnpacksXz) {
  const Scratch scratch;
  const std::string packed =
      std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/formats/trace.topk.txt.xz";
  const Outcome run = trimtab("convert " + packed + " " + scratch.file("x.csv"));
  EXPECT_TRUE(contains(run.out, "(csv): loads of 2 steps x 2 layers x 4 experts"))
      << run.out << run.err;
  const std::string cut = scratch.file("cut.topk.txt.xz", read_file(packed).substr(0, 100));
  EXPECT_EQ(error_line({"convert " + cut + " " + scratch.file("y.csv"), ""}, 1),
            cut + " at byte 100: xz: the file ends too early");
}
#endif

TEST(Convert, AnArrayOfThreeDimensionsIsLoads) {
  const Scratch scratch;
  const std::string trace = kTinyMoe + "/trace.npy", json = scratch.file("x.json");
  const Outcome run = trimtab("convert " + trace + " " + json);
  EXPECT_TRUE(contains(run.out, "loads of 128 steps x 4 layers x 32 experts"))
      << run.out << run.err;
  EXPECT_EQ(error_line({"check " + trace + " --ranks 4", ""}, 1),
            trace + " at byte 0: holds loads, no placement (npy of three dimensions)");
  EXPECT_EQ(error_line({"convert " + trace + " " + json + " --to vllm-ascend", ""}, 1),
            "format vllm-ascend is read only for loads; json, npy, csv, sglang, trtllm, vllm are "
            "written");
}

TEST(Convert, LoadsOfSlotsNeedThePlacementThatTheyWereRecordedUnder) {
  const Scratch scratch;
  const std::string map = scratch.file(
      "map.json", R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [2, 2],
                      "layer_ids": [3], "physical_to_logical_map": [[0, 1, 2, 0]]})");
  std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 1, 2, 2), }";
  header.resize(117, ' ');
  header += '\n';
  std::string image = std::string("\x93NUMPY\1\0", 8) + std::string("\x76\0", 2) + header;
  for (const char tokens : {'\5', '\1', '\2', '\4'}) image += tokens + std::string(7, '\0');
  const std::string slots = scratch.file("slots.npy", image), out = scratch.file("out.csv");
  const std::string command = "convert " + slots + " " + out;
  EXPECT_EQ(error_line({command, ""}, 1),
            slots +
                ": vLLM-Ascend counts the tokens of slots; give the placement that was in use "
                "(--recorded-under)");
  const Outcome run = trimtab(command + " --recorded-under " + map);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(contains(read_file(out), "\n3,0,9\n3,1,1\n3,2,2\n")) << read_file(out);
  const std::string csv = scratch.file("a.csv", "0,0,4\n0,1,5\n");
  EXPECT_EQ(error_line({"inspect " + csv + " --recorded-under " + map, ""}, 2),
            "--recorded-under: " + csv +
                " is csv, which counts experts and no slots (see trimtab "
                "inspect --help)");
}

TEST(Convert, StatisticsOfTensorrtLlm) {
  const Scratch scratch;
  const std::string csv = scratch.file("a.csv", "0,0,4\n0,1,5\n"),
                    folder = scratch.file("statistics");
  const std::string command = "convert " + csv + " " + folder + " --to trtllm";
  EXPECT_EQ(error_line({command, ""}, 1),
            csv + " does not say num_experts_per_token; give --experts-per-token");
  ASSERT_EQ(trimtab(command + " --experts-per-token 1").status, 0);
  const Outcome back = trimtab("convert " + folder + " " + scratch.file("b.csv"));
  EXPECT_TRUE(contains(back.out, "(trtllm) -> ")) << back.out << back.err;
  EXPECT_TRUE(contains(read_file(scratch.file("b.csv")), read_file(csv)));
}

TEST(Convert, Failures) {
  const Scratch scratch;
  const std::string map = scratch.file("map.json", R"({"physical_to_logical_map": [[0, 1]]})");
  const std::string csv = scratch.file("a.csv", "0,0,4\n0,1,5\n");
  const std::string npy = scratch.file("a.npy"), out = scratch.file("out");
  ASSERT_EQ(trimtab("convert " + map + " " + npy + " --ranks 1").status, 0);
  for (const Failure& failure : std::vector<Failure>{
           {"convert " + csv + " " + out,
            out + ": the name does not say which format to write; give --to"},
           {"convert " + map + " " + out + " --to npy",
            map + ": sglang does not say how many ranks there are; give --ranks"},
           {"convert " + npy + " " + out + " --to json",
            npy + " may be loads or a placement; give --kind loads or --kind placement"},
           {"convert " + map + " " + out + " --to csv --ranks 1",
            "format csv has no placements; json, npy, sglang, trtllm, vllm, vllm-ascend have"},
           {"convert " + csv + " " + out + " --to topk",
            "format topk is read only: counts do not say which token chose what"},
           {"convert " + csv + " " + out + " --to csv --report /nowhere/x",
            "--report /nowhere/x can't be written: No such file or directory"},
           {"convert /nowhere x.csv", "can't open /nowhere: No such file or directory"}}) {
    EXPECT_EQ(error_line(failure, 1), failure.message);
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  for (const Failure& failure :
       std::vector<Failure>{{"convert x", "OUT"},
                            {"convert x y --to yaml", "--to: yaml not in {json,"},
                            {"convert x y --kind map", "--kind: map not in {loads,"},
                            {"convert x y --ranks x", "--ranks"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
    EXPECT_TRUE(contains(line, "(see trimtab convert --help)")) << line;
  }
}

// Ctrl-C in the middle of a large file.
TEST(Convert, InterruptedItLeavesNothing) {
  const Scratch scratch;
  const std::string loads = scratch.file("loads.npy"), out = scratch.file("out.csv");
  const std::vector<int64_t> shape = {100, 58, 256};
  const std::vector<int32_t> counts(cells(100, 58, 256), 50);
  write_npy(loads, DType::kI32, shape, std::as_bytes(std::span(counts)));
  const auto left_beside = [&] {
    return std::ranges::count_if(
        std::filesystem::directory_iterator(std::filesystem::path(out).parent_path()),
        [](const auto& entry) { return entry.path().filename().string().starts_with("out.csv."); });
  };
  int interrupted = 0;
  for (int tries = 0; tries < 20 && interrupted < 3; ++tries) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      execl(TRIMTAB_BINARY, "trimtab", "convert", loads.c_str(), out.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 && left_beside() == 0) usleep(500);
    if (ended == 0) {
      kill(child, SIGINT);
      waitpid(child, &status, 0);
    }
    if (WIFSIGNALED(status)) {
      EXPECT_EQ(WTERMSIG(status), SIGINT);
      ++interrupted;
    }
    EXPECT_EQ(left_beside(), 0);
  }
  EXPECT_GT(interrupted, 0) << "no try was caught while it wrote";
}

}  // namespace
}  // namespace trimtab::cli
