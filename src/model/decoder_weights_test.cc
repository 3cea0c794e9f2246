// SPDX-License-Identifier: Apache-2.0
// What DecoderWeights::load() makes of checkpoints: formats of experts, and tensors that are wrong.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <span>

#include "base/cat.h"
#include "model/checkpoint_testing.h"
#include "model/decoder_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// What the checkpoint has, where the kernels have a format for it.
TEST(QuantisedExperts, StayAsTheyAre) {
  const std::pair<const char*, std::string> cases[] = {{"qwen2_moe_int8", "w8a8"},
                                                       {"mixtral_fp8", "fp8"},
                                                       {"qwen3_moe_fp8", "f32"},
                                                       {"qwen3_moe_int4", "f32"},
                                                       {"qwen3_moe", "f32"}};
  for (const auto& [checkpoint, format] : cases) {
    const Model model = open_model(checkpoint);
    const Placement placement = linear_placement(model.config, 1);
    const auto as_it_is = DecoderWeights::load(model.tensors, model.config, DType::kF32, placement);
    EXPECT_EQ(name(as_it_is->expert_format()), format) << checkpoint;
    const auto in_f32 =
        DecoderWeights::load(model.tensors, model.config, {DType::kF32, DType::kF32}, placement);
    EXPECT_EQ(name(in_f32->expert_format()), "f32");
    // Packing is another: no format gives the same size.
    EXPECT_EQ(as_it_is->bytes() == in_f32->bytes(), format == "f32") << checkpoint;
  }
}

// An outline knows what the weights take, together and for each rank, and can't be run.
TEST(Outlines, HaveTheSizesOfWhatWouldBeLoaded) {
  const std::optional<WeightFormat> formats[] = {std::nullopt, Scheme::kBF16, Scheme::kW8A8,
                                                 WeightFormat(Scheme::kW4A8, 8)};
  for (const char* checkpoint : {"qwen2_moe_int8", "mixtral_fp8", "mixtral_fp8_tensor",
                                 "qwen3_moe_int4", "olmoe_int4", "qwen3_moe_sparse", "mixtral"}) {
    const Model model = open_model(checkpoint);
    const Placement placement = linear_placement(model.config, 2);
    for (const auto& format : formats) {
      SCOPED_TRACE(cat(checkpoint, " ", format ? name(*format) : "as it is"));
      const DecoderFormats how(DType::kF32, format);
      const auto outline =
          DecoderWeights::load(model.tensors, model.config, how, placement, {.outline = true});
      const auto loaded = DecoderWeights::load(model.tensors, model.config, how, placement);
      EXPECT_TRUE(outline->is_outline());
      EXPECT_FALSE(loaded->is_outline());
      EXPECT_EQ(outline->bytes(), loaded->bytes());
      EXPECT_EQ(outline->expert_bytes(), loaded->expert_bytes());
      for (const int rank : {0, 1}) {
        const auto own = DecoderWeights::load(model.tensors, model.config, how, placement,
                                              {.ranks = std::span(&rank, 1)});
        EXPECT_EQ(outline->bytes_of(placement, std::span(&rank, 1)), own->bytes());
        EXPECT_EQ(loaded->bytes_of(placement, std::span(&rank, 1)), own->bytes());
      }
      run_ranks(2, [&](Communicator& comm) {
        const auto sizes = outline->expert_slots_sizes(placement, comm, 2);
        const auto slots = loaded->expert_slots(placement, comm, 2);
        EXPECT_EQ(sizes.bytes, slots->bytes());
        EXPECT_EQ(sizes.expert_bytes, slots->expert_bytes());
        EXPECT_EQ(sizes.staging_bytes, slots->staging_bytes());
        Decoder drawn(outline, placement, comm), real(loaded, placement, comm);
        EXPECT_EQ(drawn.workspace_bytes(), real.workspace_bytes());
        KvCache cache(model.config, 4);
        const Ids ids{1, 2};
        const std::vector<Chunk> batch{{&cache, ids}};
        EXPECT_THROW(drawn.step(batch, {}), InvalidArgument);
      });
    }
  }
}

// A copy of a checkpoint in which the shared experts are not quantised.
SafeTensors with_plain_shared_experts(const Model& model, const TestFolder& folder) {
  std::map<std::string, TensorView> tensors;
  for (const std::string& name : model.tensors.names()) {
    if (name.find(".shared_expert.") == name.npos) tensors[name] = model.tensors.at(name);
  }
  std::vector<std::vector<float>> plain;
  for (int layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    if (!model.config.is_moe_layer[layer]) continue;
    const MlpSource shared = *find_moe_tensors(model.tensors, model.config, layer).shared;
    for (const auto& [name, source] :
         {std::pair{"gate", shared.gate}, {"up", shared.up}, {"down", shared.down}}) {
      std::vector<float>& values =
          plain.emplace_back(static_cast<size_t>(source.rows * source.cols));
      read_rows(source, 0, Rows(values.data(), source.rows, source.cols));
      tensors[cat("model.layers.", layer, ".mlp.shared_expert.", name, "_proj.weight")] = {
          DType::kF32, {source.rows, source.cols}, std::as_bytes(std::span(values))};
    }
  }
  folder.write("model.safetensors", safetensors_image(tensors));
  return SafeTensors::open(folder.path());
}

// Routed and shared experts, dense layers, biases and experts in parts, packed by several threads.
TEST(DecoderWeights, AnyThreadsLoadTheSameWeights) {
  for (const char* name : {"qwen2_moe", "qwen3_moe_sparse", "olmoe_int4"}) {
    const Model model = open_model(name);
    const auto prompts = random_prompts(model.config, {9, 14});
    const Placement placement = linear_placement(model.config, 2);
    const auto logits = [&](int threads) {
      std::vector<size_t> ready;
      const auto weights = DecoderWeights::load(
          model.tensors, model.config, {DType::kBF16, Scheme::kW4A8, Scheme::kW8A8}, placement,
          {.threads = threads,
           .progress = [&](const LoadProgress& progress) { ready.push_back(progress.bytes); }});
      std::vector<std::vector<float>> out(2);
      run_ranks(2, [&](Communicator& comm) {
        Decoder decoder(weights, placement, comm);
        const Ids& ids = prompts[comm.rank()];
        KvCache cache(model.config, std::ssize(ids));
        const Chunk chunk{&cache, ids, Chunk::Logits::kAll};
        auto& to = out[comm.rank()];
        to.resize(ids.size() * static_cast<size_t>(model.config.vocab_size));
        decoder.step({&chunk, 1}, Rows(to.data(), std::ssize(ids), model.config.vocab_size));
      });
      return std::pair(ready, out);
    };
    const auto alone = logits(1);
    EXPECT_EQ(logits(4), alone) << name;
  }
}

TEST(QuantisedExperts, SharedOnesThatAreNotQuantisedStayPlain) {
  const Model model = open_model("qwen2_moe_int8");
  const TestFolder folder;
  const SafeTensors tensors = with_plain_shared_experts(model, folder);
  const Placement placement = linear_placement(model.config, 1);
  const auto load = [&](const SafeTensors& from, std::optional<WeightFormat> experts = {}) {
    return DecoderWeights::load(from, model.config, {DType::kBF16, experts}, placement);
  };
  const auto as_it_is = load(tensors);
  EXPECT_EQ(name(as_it_is->expert_format()), "w8a8");
  EXPECT_GT(as_it_is->bytes(), load(model.tensors)->bytes());
  EXPECT_EQ(load(tensors, Scheme::kW8A8)->bytes(), load(model.tensors)->bytes());
}

// Rows are rounded as the format has it, twice in each layer: to bf16, by 2^-9, or to int8 with a
// scale per row. Rows of a few dozen elements have a largest magnitude of about three times the
// root of their mean square, so that rounding to 1 / 127 of it is off by 3 / 127 / sqrt(12), with
// the weights exact. Errors of stages add up as squares; a factor of 3 stands for rows that are
// worse than the mean and for gates.
TEST(QuantisedExperts, ComputeWithinTheRoundingOfTheirRows) {
  for (const auto& [checkpoint, rounding] :
       {std::pair{"qwen2_moe_int8", 3 / 127.0 / std::sqrt(12.0)},
        {"olmoe_int4", 3 / 127.0 / std::sqrt(12.0)},
        {"mixtral_fp8", 2 * 0x1p-9}}) {
    const Model model = open_model(checkpoint);
    const auto cols = static_cast<size_t>(model.config.vocab_size);
    const std::vector<Ids> prompt = {values<int32_t>(model.expected.at("input_ids"))};
    const auto expected = values<float>(model.expected.at("logits"));
    const WeightFormat native = native_expert_format(model);
    const auto logits = all_logits(model, prompt, {.experts = native});
    const double error = relative_error(logits[0], expected, cols);
    EXPECT_LE(error, 3 * rounding * std::sqrt(2 * model.config.num_hidden_layers)) << checkpoint;
    EXPECT_GT(error, 1e-4) << checkpoint;
    for (const int ranks : {2, 3})
      EXPECT_EQ(all_logits(model, prompt, {.ranks = ranks, .experts = native}), logits);
  }
}

// Weight-only experts keep their rows in bf16; static rows are rounded otherwise only where
// somebody asks.
TEST(QuantisedExperts, RowsAreNotRoundedWithoutAWord) {
  const auto load = [](const Model& model, std::optional<WeightFormat> experts = {}) {
    return DecoderWeights::load(model.tensors, model.config, {DType::kBF16, experts},
                                linear_placement(model.config, 1));
  };
  const Model int4 = open_model("olmoe_int4");
  EXPECT_EQ(name(load(int4)->expert_format()), "w4a16-channel");
  EXPECT_EQ(name(load(int4, WeightFormat(Scheme::kW4A8, 0))->expert_format()), "w4a8-channel");
  EXPECT_EQ(name(load(int4, DType::kBF16)->expert_format()), "bf16");

  const Model fp8 = open_model("mixtral_fp8_tensor");
  EXPECT_EQ(name(load(fp8)->expert_format()), "fp8");
  Model local = open_model("mixtral_fp8_tensor");
  local.config.quantization.groups[0].has_input_scale = false;
  const std::string fixed = error_text<InvalidArgument>([&] { load(local); });
  EXPECT_NE(fixed.find("activation_scheme' is static"), fixed.npos) << fixed;
  EXPECT_NE(fixed.find("--experts fp8"), fixed.npos) << fixed;

  // Shared experts have a say of their own.
  Model shared = open_model("qwen2_moe_int8");
  QuantizationConfig& quantization = shared.config.quantization;
  quantization.groups.insert(quantization.groups.begin(), quantization.groups[0]);
  quantization.groups[0].targets = {"re:.*shared_expert\\."};
  EXPECT_NO_THROW(load(shared));
  quantization.groups[0].rows = QuantizationConfig::Rows::kPlain;
  EXPECT_NO_THROW(load(shared));
  quantization.groups[0].rows = QuantizationConfig::Rows::kStatic;
  EXPECT_THROW(load(shared), InvalidArgument);
  // Scales that are said to be there and are not.
  quantization.groups[0].has_input_scale = true;
  EXPECT_NE(error_text<FormatError>([&] { load(shared); }).find("input_scale' is missing"),
            std::string::npos);
}

// A checkpoint with changed, added or missing tensors.
class ChangedCheckpoint {
 public:
  explicit ChangedCheckpoint(const std::string& name) : model_(open_model(name)) {
    for (const std::string& each : model_.tensors.names()) tensors_[each] = model_.tensors.at(each);
  }
  ModelConfig& config() { return model_.config; }
  TensorView& operator[](const std::string& name) { return tensors_[name]; }
  void erase(const std::string& name) { tensors_.erase(name); }
  // The tensor's bytes, from now on its own.
  std::span<std::byte> bytes(const std::string& name) {
    TensorView& tensor = tensors_.at(name);
    owned_.emplace_back(tensor.data.begin(), tensor.data.end());
    tensor.data = owned_.back();
    return owned_.back();
  }
  void load(std::optional<WeightFormat> experts = {}) {
    folder_.write("model.safetensors", safetensors_image(tensors_));
    DecoderWeights::load(SafeTensors::open(folder_.path()), model_.config, {DType::kF32, experts},
                         linear_placement(model_.config, 1));
  }

 private:
  Model model_;
  TestFolder folder_;
  std::map<std::string, TensorView> tensors_;
  std::list<std::vector<std::byte>> owned_;
};

TEST(DecoderWeights, NameTheModuleOfAWeightThatCanNotBePacked) {
  const uint16_t bf16_nan = 0x7fc0;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char *checkpoint, *tensor, *text;
  };
  for (const Case& c : {Case{"qwen3_moe", "model.layers.1.mlp.experts.3.up_proj.weight",
                             "model.layers.1.mlp.experts.3: "},
                        {"mixtral_merged", "model.layers.1.mlp.experts.down_proj",
                         "model.layers.1.mlp.experts, expert 7: "},
                        {"qwen2_moe", "model.layers.2.mlp.shared_expert.up_proj.weight",
                         "model.layers.2.mlp, shared experts: "}}) {
    ChangedCheckpoint checkpoint(c.checkpoint);
    const DType dtype = checkpoint[c.tensor].dtype;
    const std::span<std::byte> bytes = checkpoint.bytes(c.tensor);
    if (dtype == DType::kBF16) {
      std::memcpy(bytes.data() + bytes.size() - sizeof(bf16_nan), &bf16_nan, sizeof(bf16_nan));
    } else {
      std::memcpy(bytes.data() + bytes.size() - sizeof(nan), &nan, sizeof(nan));
    }
    for (const Scheme format : {Scheme::kW8A8, Scheme::kMXFP8, Scheme::kMXFP4}) {
      const std::string text = error_text<InvalidArgument>([&] { checkpoint.load(format); });
      EXPECT_TRUE(text.starts_with(c.text)) << text;
      EXPECT_NE(text.find("nan"), text.npos) << text;
    }
  }
  // Of a linear map: the scale of a quantised matrix.
  ChangedCheckpoint scaled("mixtral_fp8_tensor");
  const std::span<std::byte> scale = scaled.bytes("model.layers.1.self_attn.k_proj.weight_scale");
  std::memcpy(scale.data(), &nan, sizeof(nan));
  const std::string text = error_text<InvalidArgument>([&] { scaled.load(Scheme::kFP8); });
  EXPECT_TRUE(text.starts_with("model.layers.1.self_attn.k_proj: ")) << text;
}

// The router would refuse every token.
TEST(DecoderWeights, NameTheRouterWhoseGateIsNotFinite) {
  const std::string tensor = "model.layers.1.mlp.gate.weight";
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    ChangedCheckpoint checkpoint("qwen3_moe");
    const TensorView& gate = checkpoint[tensor];
    const size_t cols = gate.shape[1], at = 2 * cols + 5;
    const std::span<std::byte> bytes = checkpoint.bytes(tensor);
    const bf16_t rounded = to_bf16(bad);
    if (gate.dtype == DType::kBF16) {
      std::memcpy(&bytes[at * sizeof(rounded)], &rounded, sizeof(rounded));
    } else {
      std::memcpy(&bytes[at * sizeof(bad)], &bad, sizeof(bad));
    }
    EXPECT_EQ(error_text<InvalidArgument>([&] { checkpoint.load(); }),
              cat("model.layers.1.mlp, the router: weight 5 of row 2 is ", bad));
  }
}

TEST(DecoderWeights, ATiedHeadOfItsOwnMustBeTheEmbedding) {
  ChangedCheckpoint checkpoint("qwen3_moe");
  ASSERT_TRUE(checkpoint.config().tie_word_embeddings);
  checkpoint["lm_head.weight"] = checkpoint["model.embed_tokens.weight"];
  EXPECT_NO_THROW(checkpoint.load());
  checkpoint.bytes("lm_head.weight").back() ^= std::byte{1};
  const std::string text = error_text<FormatError>([&] { checkpoint.load(); });
  EXPECT_NE(text.find("'lm_head.weight' differs from model.embed_tokens.weight"), text.npos)
      << text;
  EXPECT_NE(text.find(" at byte "), text.npos) << text;
}

TEST(DecoderWeights, EveryTensorOfTheModelHasItsPlace) {
  struct Case {
    const char *checkpoint, *like, *name, *text;
  };
  for (const Case& c :
       {Case{"qwen3_moe", "model.layers.1.input_layernorm.weight",
             "model.layers.2.input_layernorm.weight", "is of layer 2, but num_hidden_layers is 2"},
        {"qwen3_moe", "model.norm.weight", "model.layers.0.self_attn.q_proj.bias", "has no place"},
        {"qwen3_moe", "model.norm.weight", "lm_head.bias", "has no place in the qwen3_moe that"},
        {"mixtral", "model.norm.weight", "model.layers.0.self_attn.q_norm.weight", "has no place"},
        {"mixtral", "model.norm.weight", "model.layers.0.block_sparse_moe.experts.3.w1.bias",
         "has no place"},
        {"qwen2_moe", "model.norm.weight", "model.layers.0.mlp.gate.weight", "has no place"},
        {"qwen3_moe", "model.layers.1.mlp.experts.7.gate_proj.weight",
         "model.layers.1.mlp.experts.8.gate_proj.weight", "is of an expert beyond the 8 that"}}) {
    ChangedCheckpoint checkpoint(c.checkpoint);
    EXPECT_NO_THROW(checkpoint.load());
    checkpoint[c.name] = checkpoint[c.like];
    const std::string text = error_text<FormatError>([&] { checkpoint.load(); });
    EXPECT_NE(text.find(cat("tensor '", c.name, "' ", c.text)), text.npos) << text;
  }
  // What changes no answer: buffers of older files, and tensors of other models in the same file.
  ChangedCheckpoint checkpoint("qwen3_moe");
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.weight",
                           "model.layers.0.self_attn.k_proj.k_scale"}) {
    checkpoint[name] = checkpoint["model.norm.weight"];
  }
  EXPECT_NO_THROW(checkpoint.load());
}

}  // namespace
}  // namespace trimtab
