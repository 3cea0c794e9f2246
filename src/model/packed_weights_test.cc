// SPDX-License-Identifier: Apache-2.0
// Integer weights as compressed-tensors (pack-quantized), GPTQ and AWQ store them. The test packs
// random numbers into words by the formats' definitions, and knows every weight by itself.
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <map>
#include <random>

#include "base/cat.h"
#include "experts/weights.h"
#include "model/checkpoint_testing.h"

namespace trimtab {
namespace {

// The last group of either matrix is cut off unless it has all inputs; all sizes are whole words.
constexpr int kHidden = 2056, kIntermediate = 72, kExperts = 2;

// (code - zero) * scale.
struct Weights {
  Weights(int num_rows, int num_cols, int num_bits, int group, bool symmetric, std::mt19937& random)
      : rows(num_rows), cols(num_cols), bits(num_bits), groups((cols + group - 1) / group) {
    const int most = (1 << bits) - 1;
    for (int i = 0; i < rows * cols; ++i) codes.push_back(static_cast<int>(random() & most));
    for (int i = 0; i < rows * groups; ++i) {
      // GPTQ can't store a zero point of 0.
      zeros.push_back(symmetric ? 1 << (bits - 1) : 1 + static_cast<int>(random() % most));
      scales.push_back(static_cast<uint16_t>(0x1400 + random() % 0x0c00));  // f16, 2^-10 to 2^-7
    }
    for (int j = 0; j < cols; ++j) blocks.push_back(j / group);
  }
  int code(int i, int j) const { return codes[i * cols + j]; }
  int zero(int i, int g) const { return zeros[i * groups + g]; }
  float want(int i, int j) const {
    const int g = blocks[j];
    return static_cast<float>(code(i, j) - zero(i, g)) * to_float(f16_t{scales[i * groups + g]});
  }

  int rows, cols, bits, groups;
  std::vector<int> codes, zeros;  // [rows, cols], [rows, groups]
  std::vector<uint16_t> scales;   // [rows, groups]
  std::vector<int32_t> blocks;    // [cols]
};

enum class Layout { kCompressed, kCompressedSymmetric, kGptq, kGptqV2, kAwq };

class Checkpoint {
 public:
  Checkpoint(Layout layout, int bits, int group, std::mt19937& random) : layout_(layout) {
    const std::vector<uint16_t> gate(kExperts * kHidden);
    add(kMlp + "gate.weight", DType::kBF16, {kExperts, kHidden}, gate);
    const bool symmetric = layout == Layout::kCompressedSymmetric;
    for (int e = 0; e < kExperts; ++e) {
      for (const auto& [name, rows, cols] : {std::tuple("w1", kIntermediate, kHidden),
                                             {"w3", kIntermediate, kHidden},
                                             {"w2", kHidden, kIntermediate}}) {
        const int size = group < 0 ? cols : group;
        matrices_.emplace_back(rows, cols, bits, size, symmetric, random);
        write(cat(kMlp, "experts.", e, ".", name), matrices_.back());
      }
    }
    config_ =
        parse_model_config(cat(R"({"model_type":"mixtral","hidden_size":)", kHidden,
                               R"(,"num_hidden_layers":1,"vocab_size":64,"num_attention_heads":4,)",
                               R"("num_key_value_heads":4,"num_local_experts":)", kExperts,
                               R"(,"num_experts_per_tok":1,"intermediate_size":)", kIntermediate,
                               R"(,"quantization_config":)", quantization(bits, group), "}"),
                           "config.json");
  }

  const Weights& matrix(int expert, int which) const { return matrices_[3 * expert + which]; }
  TensorView& tensor(const std::string& name) { return tensors_.at(kMlp + name); }
  Weights& matrix(int index) { return matrices_[index]; }
  // Columns in another order of groups.
  void reorder(int index, const std::string& module, std::vector<int32_t> blocks) {
    matrices_[index].blocks = blocks;
    add(kMlp + module + ".g_idx", DType::kI32, {std::ssize(blocks)}, blocks);
  }
  MoeTensors read() {
    folder_.write("model.safetensors", safetensors_image(tensors_));
    file_ = SafeTensors::open(folder_.path());
    return find_moe_tensors(*file_, config_, 0);
  }
  const ModelConfig& config() const { return config_; }

 private:
  static inline const std::string kMlp = "model.layers.0.block_sparse_moe.";

  template <class T>
  void add(const std::string& name, DType dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    const auto* p = reinterpret_cast<const std::byte*>(values.data());
    owned_.emplace_back(p, p + values.size() * sizeof(T));
    tensors_[name] = {dtype, std::move(shape), owned_.back()};
  }

  std::string quantization(int bits, int group) const {
    const std::string sizes = cat(R"("bits":)", bits, R"(,"group_size":)", group);
    switch (layout_) {
      case Layout::kGptq:
        return cat(R"({"quant_method":"gptq","desc_act":true,"sym":false,)", sizes, "}");
      case Layout::kGptqV2:
        return cat(R"({"quant_method":"gptq","checkpoint_format":"gptq_v2",)", sizes, "}");
      case Layout::kAwq:
        return cat(R"({"quant_method":"awq","version":"GEMM","zero_point":true,)", sizes, "}");
      default:
        return cat(R"({"quant_method":"compressed-tensors","format":"pack-quantized",)",
                   R"("config_groups":{"group_0":{"targets":["Linear"],"input_activations":null,)",
                   R"("weights":{"type":"int","num_bits":)", bits, R"(,"group_size":)", group,
                   R"(,"symmetric":)", layout_ == Layout::kCompressedSymmetric ? "true" : "false",
                   "}}}}");
    }
  }

  // Words of 32 bits [down, across]: number p of the word (a, b) is value(a, b, p).
  template <class Value>
  static std::vector<uint32_t> words(int down, int across, int bits, const Value& value) {
    std::vector<uint32_t> result;
    for (int a = 0; a < down; ++a) {
      for (int b = 0; b < across; ++b) {
        uint32_t word = 0;
        for (int p = 0; p < 32 / bits; ++p)
          word |= static_cast<uint32_t>(value(a, b, p)) << (p * bits);
        result.push_back(word);
      }
    }
    return result;
  }

  void write(const std::string& module, const Weights& w) {
    if (layout_ == Layout::kCompressed || layout_ == Layout::kCompressedSymmetric)
      return write_compressed(module + ".weight", w);
    const int n = 32 / w.bits;
    // AWQ: the outputs of a word from its lowest bits.
    constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    const bool awq = layout_ == Layout::kAwq;
    const auto output = [&](int b, int p) { return b * n + (awq ? kAwqOrder[p] : p); };
    if (awq) {
      add(module + ".qweight", DType::kI32, {w.cols, w.rows / n},
          words(w.cols, w.rows / n, w.bits,
                [&](int j, int b, int p) { return w.code(output(b, p), j); }));
    } else {
      add(module + ".qweight", DType::kI32, {w.cols / n, w.rows},
          words(w.cols / n, w.rows, w.bits,
                [&](int a, int i, int p) { return w.code(i, a * n + p); }));
      add(module + ".g_idx", DType::kI32, {w.cols}, w.blocks);
    }
    const int less = layout_ == Layout::kGptq ? 1 : 0;
    add(module + ".qzeros", DType::kI32, {w.groups, w.rows / n},
        words(w.groups, w.rows / n, w.bits,
              [&](int g, int b, int p) { return w.zero(output(b, p), g) - less; }));
    std::vector<uint16_t> scales;
    for (int g = 0; g < w.groups; ++g) {
      for (int i = 0; i < w.rows; ++i) scales.push_back(w.scales[i * w.groups + g]);
    }
    add(module + ".scales", DType::kF16, {w.groups, w.rows}, scales);
  }

  void write_compressed(const std::string& weight, const Weights& w) {
    const int n = 32 / w.bits;
    add(weight + "_packed", DType::kI32, {w.rows, w.cols / n},
        words(w.rows, w.cols / n, w.bits,
              [&](int i, int b, int p) { return w.code(i, b * n + p); }));
    add(weight + "_scale", DType::kF16, {w.rows, w.groups}, w.scales);
    add(weight + "_shape", DType::kI64, {2}, std::vector<int64_t>{w.rows, w.cols});
    if (layout_ == Layout::kCompressedSymmetric) return;
    add(weight + "_zero_point", DType::kI32, {w.rows / n, w.groups},
        words(w.rows / n, w.groups, w.bits,
              [&](int a, int g, int p) { return w.zero(a * n + p, g); }));
  }

  Layout layout_;
  std::vector<Weights> matrices_;
  std::map<std::string, TensorView> tensors_;
  std::list<std::vector<std::byte>> owned_;
  ModelConfig config_;
  TestFolder folder_;
  std::optional<SafeTensors> file_;
};

void expect_weights(const MatrixSource& source, const Weights& weights) {
  ASSERT_EQ(source.rows, weights.rows);
  ASSERT_EQ(source.cols, weights.cols);
  std::vector<float> row(weights.cols);
  for (int i = 0; i < weights.rows; ++i) {
    read_row(source, i, row.data());
    for (int j = 0; j < weights.cols; ++j) {
      ASSERT_EQ(row[j], weights.want(i, j)) << i << " " << j;
      ASSERT_EQ(source.at(i, j), weights.want(i, j)) << i << " " << j;
    }
  }
}

// The same weights as rows of bytes, with their zero points as bytes and scales in f32.
class PlainMatrix {
 public:
  explicit PlainMatrix(const Weights& w)
      : codes_(w.codes.begin(), w.codes.end()), zeros_(w.zeros.begin(), w.zeros.end()) {
    for (const uint16_t scale : w.scales) scales_.push_back(to_float(f16_t{scale}));
    source = {
        reinterpret_cast<const std::byte*>(codes_.data()), DType::kU8, w.rows, w.cols, w.cols, 1};
    Quantization& q = source.quantization;
    q.scales = reinterpret_cast<const std::byte*>(scales_.data());
    q.zeros = reinterpret_cast<const std::byte*>(zeros_.data());
    q.block_cols = w.groups == 1 ? w.cols : std::ranges::count(w.blocks, 0);
    q.scale_row_stride = q.zero_row_stride = w.groups;
  }
  MatrixSource source;

 private:
  std::vector<uint8_t> codes_, zeros_;
  std::vector<float> scales_;
};

bool same_bytes(const Buffer& a, const Buffer& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

using Case = std::tuple<Layout, int, int>;  // bits, group
class PackedWeightsTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, PackedWeightsTest,
    testing::Combine(testing::Values(Layout::kCompressed, Layout::kCompressedSymmetric,
                                     Layout::kGptq, Layout::kGptqV2, Layout::kAwq),
                     testing::Values(4, 8), testing::Values(-1, 32, 64)));

TEST_P(PackedWeightsTest, AreReadAndKeptAsTheyAre) {
  const auto [layout, bits, group] = GetParam();
  if (layout == Layout::kAwq && bits == 8) return;  // there is none
  std::mt19937 random(7);
  Checkpoint checkpoint(layout, bits, group, random);
  const MoeTensors moe = checkpoint.read();
  const WeightFormat wanted(bits == 4 ? Scheme::kW4A16 : Scheme::kW8A16, group < 0 ? 0 : group);
  for (int e = 0; e < kExperts; ++e) {
    const MlpSource& expert = moe.experts[e];
    expect_weights(expert.gate, checkpoint.matrix(e, 0));
    expect_weights(expert.up, checkpoint.matrix(e, 1));
    expect_weights(expert.down, checkpoint.matrix(e, 2));
    ASSERT_EQ(native_format(expert, true), wanted);
    // In panels they are what plain bytes with the same scales and zero points are.
    if (bits != 8) continue;
    const PlainMatrix gate(checkpoint.matrix(e, 0)), up(checkpoint.matrix(e, 1)),
        down(checkpoint.matrix(e, 2));
    const Mlp packed(expert, {}, wanted),
        plain({gate.source, up.source, down.source, {}, {}, {}}, {}, wanted);
    for (const auto& [a, b] : {std::pair(&packed.gate_up_packed(), &plain.gate_up_packed()),
                               {&packed.down_packed(), &plain.down_packed()}}) {
      EXPECT_TRUE(same_bytes(a->panels, b->panels));
      EXPECT_TRUE(same_bytes(a->scales, b->scales));
      if (layout != Layout::kCompressedSymmetric) {
        EXPECT_TRUE(same_bytes(a->zeros, b->zeros));
      }
    }
  }
}

// y = W act in double, with the bound of its error in f32.
void expect_product(const Mlp& mlp, const Weights& down, std::mt19937& random) {
  const int64_t rows = 9;  // packed into a tile
  std::vector<uint16_t> act(rows * kIntermediate);
  std::normal_distribution<float> normal;
  for (uint16_t& value : act) value = to_bf16(normal(random)).bits;
  std::vector<float> y(rows * kHidden);
  const Buffer scratch(mlp.scratch_bytes(rows));
  Team team(1);
  for (const int64_t count : {int64_t{3}, rows}) {
    mlp.down(ConstRows(reinterpret_cast<const std::byte*>(act.data()), count, kIntermediate,
                       kIntermediate, DType::kBF16),
             Rows(y.data(), count, kHidden), {scratch.data(), scratch.bytes()}, team);
    for (int64_t r = 0; r < count; ++r) {
      for (int i = 0; i < kHidden; ++i) {
        double want = 0, magnitudes = 0;
        for (int j = 0; j < kIntermediate; ++j) {
          const bf16_t x{act[static_cast<size_t>(r * kIntermediate + j)]};
          const double term = double{down.want(i, j)} * double{to_float(x)};
          want += term;
          magnitudes += std::abs(term);
        }
        ASSERT_NEAR(double{y[static_cast<size_t>(r * kHidden + i)]}, want,
                    (kIntermediate + 10) * 0x1p-24 * magnitudes)
            << r << " " << i;
      }
    }
  }
}

// Each packed expert computes what its weights say, zero points included.
TEST_P(PackedWeightsTest, ExpertsComputeWithThem) {
  const auto [layout, bits, group] = GetParam();
  if (layout == Layout::kAwq && bits == 8) return;
  std::mt19937 random(8);
  Checkpoint checkpoint(layout, bits, group, random);
  const MoeTensors moe = checkpoint.read();
  const Mlp mlp(moe.experts[1], {}, *native_format(moe.experts[1], true));
  expect_product(mlp, checkpoint.matrix(1, 2), random);
}

// desc_act: groups are of columns anywhere. Their order is kept beside the weights, and rows
// follow.
TEST(PackedWeights, ColumnsInAnotherOrderOfGroups) {
  std::mt19937 random(9);
  for (const int bits : {4, 8}) {
    Checkpoint checkpoint(Layout::kGptq, bits, 32, random);
    const auto shuffle = [&](int index, const std::string& module, std::vector<int32_t> blocks) {
      std::ranges::shuffle(blocks, random);
      checkpoint.reorder(index, module, blocks);
      return blocks;
    };
    const std::vector<int32_t> hidden = shuffle(3, "experts.1.w1", checkpoint.matrix(3).blocks);
    checkpoint.reorder(4, "experts.1.w3", hidden);
    shuffle(5, "experts.1.w2", checkpoint.matrix(5).blocks);
    const MoeTensors moe = checkpoint.read();
    const MlpSource& expert = moe.experts[1];
    expect_weights(expert.gate, checkpoint.matrix(3));
    expect_weights(expert.down, checkpoint.matrix(5));
    const WeightFormat wanted(bits == 4 ? Scheme::kW4A16 : Scheme::kW8A16, 32);
    ASSERT_EQ(native_format(expert, true), wanted);
    EXPECT_EQ(native_format(expert, false), std::nullopt);
    const Mlp mlp(expert, {}, wanted);
    ASSERT_GT(mlp.down_packed().order.bytes(), 0U);
    expect_product(mlp, checkpoint.matrix(5), random);

    // Gate and up: what unpacked weights compute, but for the rounding of these to bf16.
    const Mlp unpacked(expert, {}, Scheme::kF32);
    std::vector<float> x(2 * kHidden), want(2 * kIntermediate);
    std::vector<uint16_t> got(want.size());
    std::normal_distribution<float> normal;
    for (float& value : x) value = to_float(to_bf16(normal(random)));
    const Buffer scratch(std::max(mlp.scratch_bytes(2), unpacked.scratch_bytes(2)));
    const std::span<std::byte> memory(scratch.data(), scratch.bytes());
    Team team(1);
    const ConstRows rows(x.data(), 2, kHidden);
    mlp.gate_up(rows,
                Rows(reinterpret_cast<std::byte*>(got.data()), 2, kIntermediate, kIntermediate,
                     DType::kBF16),
                memory, team);
    unpacked.gate_up(rows, Rows(want.data(), 2, kIntermediate), memory, team);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(to_float(bf16_t{got[i]}), want[i], 0x1p-8F * std::abs(want[i]) + 1e-3F) << i;

    // Beside one in order; and gate and up that disagree.
    EXPECT_THROW(
        make_grouped_experts({std::make_shared<const Mlp>(expert, Activation{}, wanted),
                              std::make_shared<const Mlp>(moe.experts[0], Activation{}, wanted)},
                             kHidden, wanted),
        InvalidArgument);
    shuffle(4, "experts.1.w3", hidden);
    const MoeTensors other = checkpoint.read();
    EXPECT_EQ(native_format(other.experts[1], true), std::nullopt);
    EXPECT_NE(error_text<InvalidArgument>([&] {
                const Mlp m(other.experts[1], {}, wanted);
              }).find("gate and up have their columns in different orders of groups"),
              std::string::npos);
    EXPECT_NO_THROW(Mlp(other.experts[1], {}, Scheme::kBF16));
  }
}

// Groups of other sizes are read right; no kernel has them.
TEST(PackedWeights, GroupsOfOtherSizesAreUnpacked) {
  std::mt19937 random(12);
  Checkpoint checkpoint(Layout::kGptq, 4, 32, random);
  std::vector<int32_t> blocks = checkpoint.matrix(3).blocks;
  blocks[5] = 7;
  checkpoint.reorder(3, "experts.1.w1", blocks);
  const MoeTensors moe = checkpoint.read();
  expect_weights(moe.experts[1].gate, checkpoint.matrix(3));
  EXPECT_EQ(native_format(moe.experts[1], true), std::nullopt);
  EXPECT_TRUE(native_format(moe.experts[0], true).has_value());
  blocks[5] = 65;
  checkpoint.reorder(3, "experts.1.w1", blocks);
  const MoeTensors bad = checkpoint.read();
  const std::string text =
      error_text<InvalidArgument>([&] { const Mlp mlp(bad.experts[1], {}, Scheme::kBF16); });
  EXPECT_EQ(text, "the gate weight: column 5 is of block 65, there are 65");
}

// Zero points of 256 can be written in GPTQ's first format only.
TEST(PackedWeights, ZeroPointsThatCanNotBeStoredAreRefused) {
  std::mt19937 random(10);
  Checkpoint checkpoint(Layout::kGptq, 8, -1, random);
  std::vector<uint32_t> zeros(kIntermediate / 4, 0x7f7f7fffU);
  checkpoint.tensor("experts.0.w1.qzeros").data = std::as_bytes(std::span(zeros));
  const MoeTensors moe = checkpoint.read();
  EXPECT_EQ(error_text<InvalidArgument>([&] { const Mlp mlp(moe.experts[0], {}, Scheme::kW8A16); }),
            "the gate weight: weights of row 0 have the zero point 256; at most 255 is stored");
}

TEST(PackedWeights, TensorsThatDoNotFitAreNamed) {
  std::mt19937 random(11);
  const auto error = [&](Layout layout, const std::string& tensor, const auto& spoil) {
    Checkpoint checkpoint(layout, 4, 64, random);
    spoil(checkpoint.tensor(tensor));
    return error_text<FormatError>([&] { checkpoint.read(); });
  };
  const auto turn = [](TensorView& t) { std::swap(t.shape[0], t.shape[1]); };
  const auto as_floats = [](TensorView& t) { t.dtype = DType::kF32; };
  for (const Layout layout : {Layout::kGptq, Layout::kAwq}) {
    for (const char* name : {"qweight", "qzeros", "scales"}) {
      const std::string tensor = cat("experts.1.w2.", name);
      EXPECT_NE(error(layout, tensor, turn).find(cat(tensor, "' has shape [")), std::string::npos)
          << error(layout, tensor, turn);
    }
    for (const char* name : {"qweight", "qzeros"}) {
      const std::string tensor = cat("experts.0.w3.", name);
      EXPECT_NE(error(layout, tensor, as_floats).find(cat(tensor, "' holds F32 in place of I32")),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace trimtab
