// SPDX-License-Identifier: Apache-2.0
// trimtab run --dry-run: what it foretells is what a run takes, to the byte.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

Json memory_of(const std::string& arguments) {
  const Outcome run = trimtab("run " + arguments + " --json");
  EXPECT_EQ(run.status, 0) << arguments << "\n" << run.err;
  return run.status == 0 ? Json::parse(run.out).at("memory") : Json();
}

// Compares all of both.
void expect_foretold(const std::string& arguments) {
  EXPECT_EQ(memory_of(arguments + " --dry-run"), memory_of(arguments)) << arguments;
}

const std::string kShort = kTinyMoe + " --steps 2 ";

TEST(DryRun, ForetellsEveryDispatcherAndWire) {
  for (const char* dispatcher :
       {"pull", "fused", "all_to_all", "mc2", "packed", "hybrid", "all_gather"})
    expect_foretold(kShort + "--ranks 3 --dispatcher " + dispatcher);
  expect_foretold(kShort + "--ranks 4 --wire i8");
  expect_foretold(kShort + "--ranks 4 --dispatcher packed --wire mxfp8 --dtype bf16");
  expect_foretold(kShort + "--ranks 4 --row-budget 0");
  for (const char* tokens : {"1", "300", "1000"})
    expect_foretold(kTinyMoe + " --ranks 2 --steps 2 --overlap --step-tokens " + tokens);
  expect_foretold(kShort + "--ranks 2 --threads-per-rank 3");
}

TEST(DryRun, ForetellsEveryLayout) {
  for (const char* layout :
       {"--tp 2 --dp 2", "--tp 2 --dp 2 --no-ep", "--tp 4 --no-sp", "--tp 2 --pcp 2", "--pcp 2"})
    expect_foretold(kShort + layout);
}

TEST(DryRun, ForetellsReplicasAndExpertsThatMove) {
  expect_foretold(kShort + "--ranks 4 --redundant-experts 8 --split round_robin");
  expect_foretold(kShort + "--ranks 3 --redundant-experts 5 --dispatcher packed");
  expect_foretold(kShort + "--ranks 4 --redundant-experts 4 --split time --cost measure");
  expect_foretold(kShort + "--ranks 4 --eplb dynamic");
  expect_foretold(kShort + "--ranks 3 --eplb dynamic --redundant-experts 6 --experts w4a8-g32");
}

TEST(DryRun, ForetellsEveryFormat) {
  for (const char* formats :
       {"--dtype bf16", "--weights w8a8", "--experts w4a8-g32", "--weights mxfp8", "--experts fp8",
        "--experts mxfp4", "--experts w4a16-g32", "--experts w8a16", "--experts f16"})
    expect_foretold(kShort + "--ranks 2 " + formats);
  for (const char* kv : {"bf16", "i8"}) expect_foretold(kShort + "--kv " + kv);
}

TEST(DryRun, ForetellsQuantisedCheckpoints) {
  for (const char* model :
       {"olmoe_int4", "qwen2_moe_int8", "qwen3_moe_int4", "qwen3_moe_fp8", "mixtral_fp8",
        "mixtral_fp8_tensor", "mixtral_merged", "qwen3_moe_sparse"})
    expect_foretold(kFixtures + model + " --steps 2 --ranks 2 --token-ids '3,4,5;6,7'");
}

TEST(DryRun, ForetellsPackedModels) {
  const Scratch scratch;
  const std::string out = scratch.file("packed");
  ASSERT_EQ(trimtab("pack " + kTinyMoe + " " + out + " --dtype bf16 --experts w4a8").status, 0);
  for (const char* how : {"--ranks 3", "--tp 2 --dp 2", "--ranks 2 --eplb dynamic"})
    expect_foretold(out + " --steps 2 " + how);
  EXPECT_TRUE(memory_of(out + " --dry-run").at("weights_mapped"));
}

TEST(DryRun, ForetellsProcesses) {
  if (!kHasMpi) GTEST_SKIP() << "built without MPI";
  const auto memory = [](const std::string& more) {
    const Scratch scratch;
    const std::string out = scratch.file("out");
    const std::string line =
        std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 3 " + TRIMTAB_BINARY + " run " +
        kShort + "--redundant-experts 4 --threads-per-rank 1 --json " + more + " >" + out;
    const int status = WEXITSTATUS(std::system(line.c_str()));
    if (status == 77) return Json();
    EXPECT_EQ(status, 0) << read_file(out);
    return Json::parse(read_file(out)).at("memory");
  };
  const Json foretold = memory("--dry-run");
  if (foretold.is_null()) GTEST_SKIP() << "needs mpiexec";
  EXPECT_EQ(foretold, memory(""));
  EXPECT_FALSE(foretold.at("shares_weights"));
  // A rank has its own experts alone, whether it is a process or not.
  const Json threads =
      memory_of(kShort + "--redundant-experts 4 --threads-per-rank 1 --ranks 3 --dry-run");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(foretold["ranks"][rank]["weights"], foretold["ranks"][rank]["own_weights"]);
    EXPECT_EQ(foretold["ranks"][rank]["own_weights"], threads["ranks"][rank]["own_weights"]);
  }
}

// Sequences that wait for others take memory later, so this is a bound.
TEST(DryRun, IsABoundWhereSequencesWait) {
  const std::string how = kTinyMoe + " --steps 8 --ranks 2 --max-sequences 2 ";
  const Json run = memory_of(how), foretold = memory_of(how + "--dry-run");
  const Json all = memory_of(kTinyMoe + " --steps 8 --ranks 2 --dry-run");
  for (int rank = 0; rank < 2; ++rank) {
    const size_t taken = run["ranks"][rank]["kv"], most = foretold["ranks"][rank]["kv"];
    EXPECT_LE(taken, most);
    EXPECT_LT(most, all["ranks"][rank]["kv"].get<size_t>());
  }
}

TEST(DryRun, SaysItInText) {
  const Scratch scratch;
  const std::string trace = scratch.file("trace.npy");
  const Outcome run = trimtab("run " + kTinyMoe + " --ranks 2 --dry-run --trace-out " + trace);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(contains(run.out, "2 ranks x")) << run.out;
  EXPECT_TRUE(contains(run.out, "\n rank    weights    experts     spares  workspace")) << run.out;
  EXPECT_TRUE(contains(run.out, "all ranks together: ")) << run.out;
  EXPECT_FALSE(std::filesystem::exists(trace));
  EXPECT_EQ(error_line({"run " + kTinyMoe + " --dry-run --tp 3 --no-ep"}, 1).substr(0, 5), "model");
}

// A model of 20 GB without contents, in less memory than one of its layers takes.
TEST(DryRun, ReadsAndTakesNothing) {
  const Scratch scratch;
  constexpr int64_t kHidden = 2048, kExperts = 128, kWidth = 768, kLayers = 16, kVocab = 32000;
  scratch.file("config.json",
               R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 128,
    "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
    "vocab_size": 32000, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
    "norm_topk_prob": true, "max_position_embeddings": 4096, "eos_token_id": 1,
    "tie_word_embeddings": false})");
  Json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t bytes = 2;
    for (const int64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("lm_head.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  for (int l = 0; l < kLayers; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".";
    add(at + "input_layernorm.weight", {kHidden});
    add(at + "post_attention_layernorm.weight", {kHidden});
    add(at + "self_attn.q_proj.weight", {4096, kHidden});
    add(at + "self_attn.k_proj.weight", {512, kHidden});
    add(at + "self_attn.v_proj.weight", {512, kHidden});
    add(at + "self_attn.o_proj.weight", {kHidden, 4096});
    add(at + "self_attn.q_norm.weight", {128});
    add(at + "self_attn.k_norm.weight", {128});
    add(at + "mlp.gate.weight", {kExperts, kHidden});
    for (int e = 0; e < kExperts; ++e) {
      const std::string expert = at + "mlp.experts." + std::to_string(e) + ".";
      add(expert + "gate_proj.weight", {kWidth, kHidden});
      add(expert + "up_proj.weight", {kWidth, kHidden});
      add(expert + "down_proj.weight", {kHidden, kWidth});
    }
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  std::string head(reinterpret_cast<const char*>(&size), sizeof size);
  const std::string file = scratch.file("model.safetensors", head + text);
  std::filesystem::resize_file(file, head.size() + size + static_cast<uint64_t>(end));

  const std::string folder = std::filesystem::path(file).parent_path().string();
  const std::string out = scratch.file("out");
  // Kilobytes of memory that the process may map to write to.
  const std::string line = "ulimit -d 600000; " + std::string(TRIMTAB_BINARY) + " run " + folder +
                           " --dtype bf16 --ranks 8 --threads-per-rank 1 --token-ids 1,2,3 " +
                           "--dry-run --json >" + out;
  ASSERT_EQ(std::system(line.c_str()), 0);
  const Json memory = Json::parse(read_file(out)).at("memory");
  // bf16 panels of these sizes hold no padding: weights are those of the file without the embedding
  // and the norms, but for the gates, which are kept in f32.
  const int64_t norms = 2 * (kHidden + kLayers * (2 * kHidden + 2 * 128));
  const int64_t gates = 2 * kLayers * kExperts * kHidden;
  EXPECT_EQ(memory["ranks"][0]["weights"].get<int64_t>(),
            end - 2 * kVocab * kHidden - norms + gates);
  EXPECT_GT(memory["ranks"][0]["workspace"].get<int64_t>(), 10'000'000);
}

}  // namespace
}  // namespace trimtab::cli
