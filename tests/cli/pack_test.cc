// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormats = " --dtype bf16 --weights w8a8 --experts w4a8";

// tiny-moe, packed.
class Pack : public testing::Test {
 protected:
  Pack() : packed(trimtab("pack " + kTinyMoe + " " + out + kFormats + " --json")) {
    EXPECT_EQ(packed.status, 0) << packed.err;
  }

  // What a run of the packed model gives, and of the model with the same formats.
  void expect_same(const std::string& options) {
    const std::string how = " --json --steps 8 --temperature 2 --seed 3 " + options;
    const Outcome mapped = trimtab("run " + out + how);
    ASSERT_EQ(mapped.status, 0) << mapped.err;
    const Outcome model = trimtab("run " + kTinyMoe + kFormats + how);
    ASSERT_EQ(model.status, 0) << model.err;
    const Json a = Json::parse(mapped.out), b = Json::parse(model.out);
    for (const char* key : {"outputs", "dtype", "linear", "experts", "par_per_layer", "rank_load"})
      EXPECT_EQ(a.at(key), b.at(key)) << key << " " << options;
  }

  const Scratch scratch;
  const std::string out = scratch.file("packed");
  const Outcome packed;
};

TEST_F(Pack, SaysWhatItWrote) {
  const Json json = Json::parse(packed.out);
  EXPECT_EQ(json.at("dtype"), "bf16");
  EXPECT_EQ(json.at("linear"), "w8a8");
  EXPECT_EQ(json.at("experts"), "w4a8");
  EXPECT_EQ(json.at("files"), 5);
  EXPECT_GT(json.at("bytes"), 1'000'000);
  const Outcome text = trimtab("pack " + kTinyMoe + " " + scratch.file("other") + kFormats);
  EXPECT_TRUE(
      contains(text.out, "GB in 5 files, bf16, attention and head in w8a8, experts in w4a8"))
      << text.out;
}

TEST_F(Pack, RunsAsTheModelDoes) {
  expect_same("--ranks 1 --threads-per-rank 2");
  expect_same("--ranks 3 --redundant-experts 6");
  const std::string config =
      scratch.file("eplb.json", R"({"preset": "short", "gate": false, "use_async": false})");
  expect_same("--ranks 4 --eplb dynamic --eplb-config " + config);
}

TEST_F(Pack, RunsOnProcesses) {
  if (!kHasMpi) GTEST_SKIP() << "needs MPI";
  const std::string how = " --json --steps 8 --temperature 2 --seed 3";
  for (const std::string eplb : {"", " --eplb dynamic"}) {
    const std::string file = scratch.file("stdout");
    const int status = std::system((std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 4 " +
                                    TRIMTAB_BINARY + " run " + out + how + eplb + " >" + file)
                                       .c_str());
    if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs mpiexec";
    ASSERT_EQ(status, 0);
    const Outcome threads = trimtab("run " + kTinyMoe + kFormats + how + " --ranks 4");
    EXPECT_EQ(Json::parse(read_file(file)).at("outputs"), Json::parse(threads.out).at("outputs"));
  }
}

TEST_F(Pack, VerifyFindsAFlippedBit) {
  const Outcome good = trimtab("verify " + out + " --json");
  ASSERT_EQ(good.status, 0) << good.err;
  const Json json = Json::parse(good.out);
  EXPECT_GT(json.at("tensors"), 100);
  EXPECT_GT(json.at("bytes"), 1'000'000);
  EXPECT_TRUE(contains(trimtab("verify " + out).out, "all as they were written"));
  std::fstream file(out + "/packed-00003-of-00005.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5000, std::ios::end);
  file.put('\x55');
  file.close();
  const std::string line = error_line({"verify " + out, ""}, 1);
  EXPECT_TRUE(contains(line, "packed-00003-of-00005.safetensors at byte ")) << line;
  EXPECT_TRUE(contains(line, "tensor 'layers.2.")) << line;
  EXPECT_TRUE(contains(line, "does not have the checksum that the header says")) << line;
  EXPECT_EQ(trimtab("run " + out + " --steps 1").status, 0);  // which compares nothing
  EXPECT_TRUE(contains(error_line({"verify " + kTinyMoe, ""}, 1), "is no packed model"));
}

TEST_F(Pack, Refusals) {
  EXPECT_EQ(error_line({"run " + out + " --experts w8a8", ""}, 1),
            "the model is packed with experts in w4a8, not w8a8; pack the original model in w8a8, "
            "or don't ask for a format");
  EXPECT_TRUE(contains(error_line({"run " + out + " --tp 2 --no-ep", ""}, 1),
                       "a packed model has its experts whole"));
  EXPECT_EQ(error_line({"pack " + kTinyMoe + " " + out, ""}, 1),
            out + " holds a model already (config.json)");
  EXPECT_TRUE(contains(error_line({"pack /nowhere " + scratch.file("x"), ""}, 1), "/nowhere"));
  EXPECT_TRUE(
      contains(error_line({"pack " + kTinyMoe + " " + scratch.file("x") + " --dtype f16", ""}, 2),
               "--dtype: f16 not in {f32,bf16,auto}"));
  // Kernels with panels of another width: those of plain C++ have 8 columns.
  setenv("TRIMTAB_ISA", "scalar", 1);
  const Outcome scalar = trimtab("run " + out);
  unsetenv("TRIMTAB_ISA");
  const bool narrow = contains(packed.out, "\"isa\": \"scalar\"");
  EXPECT_EQ(scalar.status, narrow ? 0 : 1) << scalar.err;
  EXPECT_EQ(contains(scalar.err, "the kernels here, scalar, read panels of 8; pack the original"),
            !narrow)
      << scalar.err;
}

}  // namespace
}  // namespace trimtab::cli
