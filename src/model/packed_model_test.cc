// SPDX-License-Identifier: Apache-2.0
// Packed models: what is read from their files is what packing the checkpoint gives, bit for bit,
// and files that are not whole or not for these kernels are refused.
#include "trimtab/packed_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cat.h"
#include "experts/isa.h"
#include "experts/weights.h"
#include "model/checkpoint_testing.h"
#include "model/decoder_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

namespace fs = std::filesystem;

std::string checkpoint(const std::string& name) {
  return std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/checkpoints/" + name;
}

Model open_packed(const std::string& folder) {
  return {read_model_config(folder), SafeTensors::open(folder), SafeTensors::open(folder)};
}

// Every format, with a group of inputs where it has groups.
std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> formats;
  for (std::string text : weight_format_names()) {
    if (text.ends_with("-gN")) text.replace(text.size() - 1, 1, "8");
    formats.push_back(parse_weight_format(text));
  }
  return formats;
}

TEST(PackedModel, ComputesTheBitsOfTheCheckpointInEveryFormat) {
  const Model model = open_model("qwen3_moe");
  const std::vector<Ids> prompts = random_prompts(model.config, {9, 1, 14});
  for (const WeightFormat format : all_formats()) {
    SCOPED_TRACE(name(format));
    const TestFolder folder;
    const DecoderFormats formats(DType::kBF16, format, format);
    const PackedModel packed =
        pack_model(checkpoint("qwen3_moe"), folder.path("out"), formats, {}, 3);
    const Model mapped = open_packed(folder.path("out"));
    ASSERT_TRUE(packed_formats(mapped.tensors));
    EXPECT_EQ(*packed_formats(mapped.tensors)->experts, format);
    EXPECT_EQ(packed.bytes, DecoderWeights::load(model.tensors, model.config, formats,
                                                 linear_placement(model.config, 1))
                                ->bytes());
    Arrangement how{.dtype = DType::kBF16, .experts = format, .linear = format};
    const auto expected = all_logits(model, prompts, how);
    EXPECT_EQ(all_logits(mapped, prompts, how), expected);
    how.ranks = 3;
    EXPECT_EQ(all_logits(mapped, prompts, how), expected);
  }
}

// What the families have beside plain experts: shared ones with a gate, biases, norms over all
// heads, dense layers, merged tensors, and weights that are quantised in the checkpoint.
TEST(PackedModel, HoldsEveryFamilyOfTheDecoder) {
  for (const std::string name : {"mixtral", "mixtral_merged", "mixtral_fp8", "qwen2_moe",
                                 "qwen2_moe_int8", "qwen3_moe_sparse", "olmoe", "olmoe_int4"}) {
    SCOPED_TRACE(name);
    const TestFolder folder;
    const Model model = open_model(name);
    const PackedModel packed = pack_model(checkpoint(name), folder.path("out"), DType::kBF16);
    const Model mapped = open_packed(folder.path("out"));
    const std::vector<Ids> prompts = random_prompts(model.config, {7, 12});
    const Arrangement how{.dtype = DType::kBF16, .experts = packed.formats.experts};
    EXPECT_EQ(all_logits(mapped, prompts, how), all_logits(model, prompts, how));
  }
}

TEST(PackedModel, ServesReplicasAndExpertsInSlots) {
  const TestFolder folder;
  const Model model = open_model("qwen3_moe");
  pack_model(checkpoint("qwen3_moe"), folder.path("out"), {DType::kF32, Scheme::kW4A8});
  const Model mapped = open_packed(folder.path("out"));
  const std::vector<Ids> prompts = random_prompts(model.config, {9, 4, 14});
  // The experts from the last to the first, with replicas of two on each rank.
  const int experts = model.config.router.num_experts;
  std::vector<int32_t> logical;
  for (int rank = 0; rank < 2; ++rank) {
    for (int e = rank; e < experts; e += 2) logical.push_back(experts - 1 - e);
    for (int e = 0; e < 2; ++e) logical.push_back(2 * e + rank);
  }
  const int layers = num_moe_layers(model.config);
  std::vector<int32_t> all;
  for (int l = 0; l < layers; ++l) all.insert(all.end(), logical.begin(), logical.end());
  const Placement placement(layers, experts, {experts / 2 + 2, experts / 2 + 2}, all);
  Arrangement how{.ranks = 2, .experts = Scheme::kW4A8, .placement = placement};
  const auto expected = all_logits(model, prompts, {.experts = Scheme::kW4A8});
  EXPECT_EQ(all_logits(mapped, prompts, how), expected);

  // Slots hold the same bytes, whichever they come from, in memory of their own.
  const auto load = [&](const Model& from) {
    return DecoderWeights::load(from.tensors, from.config, {DType::kF32, Scheme::kW4A8}, placement,
                                {.routed = RoutedExperts::kInSlots});
  };
  const auto packed_here = load(model), packed_before = load(mapped);
  run_ranks(2, [&](Communicator& comm) {
    const auto a = packed_here->expert_slots(placement, comm, 1);
    const auto b = packed_before->expert_slots(placement, comm, 1);
    for (int l = 0; l < layers; ++l) {
      for (int s = 0; s < a->num_slots(); ++s)
        EXPECT_TRUE(std::ranges::equal(a->message(l, s), b->message(l, s)));
    }
    // What is received into a spare is written there; a mapped page would end the process.
    std::ranges::fill(b->spare(0), std::byte{1});
  });
}

TEST(PackedModel, LoadsOnlyWhatTheRanksHold) {
  const TestFolder folder;
  pack_model(checkpoint("qwen3_moe"), folder.path("out"), DType::kF32);
  const Model mapped = open_packed(folder.path("out"));
  const Placement placement = linear_placement(mapped.config, 4);
  const std::vector<int> one = {2};
  std::vector<LoadProgress> seen;
  const auto all = DecoderWeights::load(
      mapped.tensors, mapped.config, DType::kF32, placement,
      {.progress = [&](const LoadProgress& progress) { seen.push_back(progress); }});
  const auto some =
      DecoderWeights::load(mapped.tensors, mapped.config, DType::kF32, placement, {.ranks = one});
  EXPECT_LT(some->bytes(), all->bytes());
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back().layers, mapped.config.num_hidden_layers);
  EXPECT_TRUE(std::ranges::is_sorted(seen, {}, &LoadProgress::bytes));
  EXPECT_LE(seen.back().bytes, all->bytes());
}

TEST(PackedModel, TakesTheFilesBesideTheWeightsAlong) {
  const TestFolder folder;
  const std::string from = std::string(TRIMTAB_SOURCE_DIR) + "/models/tiny-moe";
  pack_model(from, folder.path("out"), DType::kBF16);
  for (const char* file : {"config.json", "generation_config.json", "prompts.txt"})
    EXPECT_TRUE(fs::exists(folder.path("out") + "/" + file)) << file;
  const std::vector<int32_t> end = read_model_config(folder.path("out")).eos_token_ids;
  EXPECT_EQ(end, read_model_config(from).eos_token_ids);
  // Nothing is written over, and nothing is packed twice.
  EXPECT_NE(error_text<InvalidArgument>([&] {
              pack_model(from, folder.path("out"), DType::kBF16);
            }).find("holds a model already (config.json)"),
            std::string::npos);
  EXPECT_NE(error_text<InvalidArgument>([&] {
              pack_model(folder.path("out"), folder.path("again"), DType::kBF16);
            }).find("is packed already"),
            std::string::npos);
}

TEST(PackedModel, SaysWhatItIsPackedAs) {
  const TestFolder folder;
  pack_model(checkpoint("qwen3_moe"), folder.path("out"), {DType::kBF16, Scheme::kW8A8});
  const Model mapped = open_packed(folder.path("out"));
  const auto refusal = [&](const DecoderFormats& formats, const LoadOptions& options = {}) {
    return error_text<InvalidArgument>([&] {
      DecoderWeights::load(mapped.tensors, mapped.config, formats,
                           linear_placement(mapped.config, 1), options);
    });
  };
  EXPECT_EQ(refusal({DType::kBF16, Scheme::kW4A8}),
            "the model is packed with experts in w8a8, not w4a8; pack the original model in w4a8, "
            "or don't ask for a format");
  EXPECT_NE(refusal(DType::kF32).find("with dtype bf16, not f32"), std::string::npos);
  EXPECT_NE(
      refusal({DType::kBF16, Scheme::kW8A8, Scheme::kW8A8}).find("attention and head in bf16"),
      std::string::npos);
  EXPECT_NE(refusal(DType::kBF16, {.expert_parts = 2}).find("experts whole, not in 2 parts"),
            std::string::npos);
  EXPECT_FALSE(packed_formats(open_model("qwen3_moe").tensors));
}

// A packed model whose files a test changes.
class DamagedModel : public testing::Test {
 protected:
  DamagedModel() {
    pack_model(checkpoint("qwen3_moe"), folder_.path("out"), {DType::kBF16, Scheme::kW4A8});
  }

  static constexpr const char* kFirst = "out/packed-00001-of-00003.safetensors";

  // Replaces text by text of the same length, in the header of every shard and in the index.
  void replace(const std::string& from, const std::string& to) {
    for (const auto& entry : fs::directory_iterator(folder_.path("out"))) {
      const std::string file = "out/" + entry.path().filename().string();
      std::string bytes = folder_.read(file);
      for (size_t at = bytes.find(from); at != bytes.npos; at = bytes.find(from, at + to.size()))
        bytes.replace(at, from.size(), to);
      folder_.write(file, bytes);
    }
  }
  std::string refusal() {
    return error_text<FormatError>([&] {
      const Model model = open_packed(folder_.path("out"));
      const auto formats = packed_formats(model.tensors);
      DecoderWeights::load(model.tensors, model.config, *formats,
                           linear_placement(model.config, 1));
    });
  }
  void expect_refused(const std::string& part) {
    const std::string text = refusal();
    EXPECT_NE(text.find(part), text.npos) << text;
  }

  const TestFolder folder_;
};

TEST_F(DamagedModel, CutOff) {
  const std::string whole = folder_.read(kFirst);
  for (const size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{4}}) {
    folder_.write(kFirst, whole.substr(0, size));
    expect_refused("packed-00001-of-00003.safetensors at byte ");
  }
  fs::remove(folder_.path(kFirst));
  expect_refused("packed-00001-of-00003.safetensors: can't be opened");
}

TEST_F(DamagedModel, OfAnotherVersion) {
  replace(R"("trimtab.packed":"1")", R"("trimtab.packed":"9")");
  expect_refused("is a packed model of version 9; this build reads version 1; pack the original");
}

TEST_F(DamagedModel, ForOtherKernels) {
  const int width = chosen_kernels().width;
  replace(cat(R"("trimtab.panel_columns":")", width, '"'),
          cat(R"("trimtab.panel_columns":")", width > 9 ? "64" : "6", '"'));
  expect_refused(cat("panels of ", width > 9 ? "64" : "6", " columns (for ", kernel_isa(),
                     "); the kernels here, ", kernel_isa(), ", read panels of ", width));
}

TEST_F(DamagedModel, OfAnotherModel) {
  std::string config = folder_.read("out/config.json");
  const std::string key = "\"num_key_value_heads\": ";
  const size_t at = config.find(key) + key.size();
  config[at] = config[at] == '4' ? '2' : '4';
  folder_.write("out/config.json", config);
  expect_refused("was packed for a model.num_key_value_heads of ");
}

TEST_F(DamagedModel, WithAFileOfAnotherModel) {
  pack_model(checkpoint("qwen3_moe"), folder_.path("other"), {DType::kF32, Scheme::kW4A8});
  const std::string second = "packed-00002-of-00003.safetensors";
  fs::copy_file(folder_.path("other/" + second), folder_.path("out/" + second),
                fs::copy_options::overwrite_existing);
  expect_refused(second +
                 ": the header has the trimtab.dtype f32, another file of the model has "
                 "bf16; pack the original model again");
}

TEST_F(DamagedModel, WithTensorsThatDoNotFit) {
  replace("layers.1.experts.3.down.panels", "layers.1.experts.3.down.pencil");
  expect_refused("tensor 'layers.1.experts.3.down.panels' is missing");
}

TEST_F(DamagedModel, InTheHeader) {
  // Every byte of the header but its blanks means something. Checksums are not for loading.
  const std::string whole = folder_.read(kFirst);
  const size_t length = whole.find("}}") + 2;
  int refused = 0;
  for (size_t at = 8; at < length; at += 7) {
    std::string bytes = whole;
    bytes[at] ^= 1;
    folder_.write(kFirst, bytes);
    try {
      const Model model = open_packed(folder_.path("out"));
      const auto formats = packed_formats(model.tensors);
      ASSERT_TRUE(formats) << "byte " << at;
      DecoderWeights::load(model.tensors, model.config, *formats,
                           linear_placement(model.config, 1));
      check_packed_model(model.tensors, 1);
      ADD_FAILURE() << "taken with another byte at " << at << ": "
                    << bytes.substr(std::max<size_t>(at, 20) - 20, 40);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// One byte of a file changes: of a tensor's contents, of the zeros behind them, of a checksum.
TEST(PackedModel, ChecksumsNameWhatIsDamaged) {
  const TestFolder folder;
  const std::string out = folder.path("out");
  pack_model(checkpoint("qwen3_moe"), out, {DType::kBF16, Scheme::kW4A8});
  const auto message = [&] {
    try {
      check_packed_model(SafeTensors::open(out), 3);
    } catch (const FormatError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  size_t seen = 0;
  const CheckedModel checked =
      check_packed_model(SafeTensors::open(out), 2, [&](size_t bytes) { seen = bytes; });
  EXPECT_EQ(checked.tensors, std::ssize(SafeTensors::open(out).names()));
  EXPECT_EQ(checked.bytes, seen);
  EXPECT_GT(seen, 100'000U);

  const std::string file = out + "/packed-00002-of-00003.safetensors";
  const auto flip = [&](size_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(byte);
  };
  const std::string tensor = "layers.1.experts.3.down.panels";
  const auto begin = static_cast<size_t>(SafeTensors::open(out).bad_tensor(tensor, "").offset());
  const size_t size = SafeTensors::open(out).at(tensor).data.size();
  for (const size_t offset : {begin, begin + 100, begin + size - 1}) {
    flip(offset);
    const std::string what = message();
    EXPECT_NE(what.find("packed-00002-of-00003.safetensors"), what.npos) << what;
    EXPECT_NE(what.find(cat("tensor '", tensor, "'")), what.npos) << what;
    EXPECT_NE(what.find("the file is damaged; pack the original model again"), what.npos) << what;
    flip(offset);
    EXPECT_EQ(message(), "");
  }
  flip(begin);
  flip(begin + size);  // the tensor behind it
  EXPECT_NE(message().find(", as 1 more of "), std::string::npos) << message();
  EXPECT_THROW(check_packed_model(SafeTensors::open(checkpoint("qwen3_moe"))), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
