// SPDX-License-Identifier: Apache-2.0
// Checkpoints and ways to run them for the tests of the decoder.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "trimtab/decoder.h"

namespace trimtab {

using Ids = std::vector<int32_t>;

struct Model {
  ModelConfig config;
  SafeTensors tensors;
  SafeTensors expected;
};

inline Model open_model(const std::string& name) {
  const std::string path = std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/checkpoints/" + name;
  return {read_model_config(path), SafeTensors::open(path + "/model.safetensors"),
          SafeTensors::open(path + "/expected.safetensors")};
}

template <class T>
std::vector<T> values(const TensorView& tensor) {
  std::vector<T> out(tensor.data.size() / sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), out.size() * sizeof(T));
  return out;
}

// The format that holds the routed experts as the checkpoint has them; f32 where none does.
inline WeightFormat native_expert_format(const Model& model) {
  const std::vector<bool>& moe = model.config.is_moe_layer;
  const auto layer = static_cast<int>(std::ranges::find(moe, true) - moe.begin());
  const MoeTensors tensors = find_moe_tensors(model.tensors, model.config, layer);
  return native_format(tensors.experts[0]).value_or(Scheme::kF32);
}

inline std::vector<Ids> random_prompts(const ModelConfig& config,
                                       const std::vector<size_t>& lengths) {
  std::mt19937 random(7);
  std::vector<Ids> prompts;
  for (const size_t length : lengths) {
    prompts.emplace_back(length);
    for (int32_t& id : prompts.back())
      id = static_cast<int32_t>(random() % static_cast<unsigned>(config.vocab_size));
  }
  return prompts;
}

struct Arrangement {
  int ranks = 1;
  DecoderOptions options = {};
  DType dtype = DType::kF32;
  size_t chunk = 1000;                       // tokens of one sequence in one step
  std::optional<WeightFormat> experts = {};  // if not given: dtype
  std::optional<WeightFormat> linear = {};   // the same
  std::optional<Placement> placement = {};   // if not given: linear
  KvFormat kv = KvFormat::kF32;
};

inline Placement linear_placement(const ModelConfig& config, int ranks) {
  return Placement::linear(num_moe_layers(config), config.router.num_experts, ranks);
}

// The logits of all tokens of each sequence; sequence i runs on rank i % ranks, together with the
// others there.
inline std::vector<std::vector<float>> all_logits(const Model& model,
                                                  const std::vector<Ids>& sequences,
                                                  const Arrangement& arrangement) {
  const Placement placement = arrangement.placement
                                  ? *arrangement.placement
                                  : linear_placement(model.config, arrangement.ranks);
  const auto weights = DecoderWeights::load(
      model.tensors, model.config,
      {arrangement.dtype, arrangement.experts.value_or(arrangement.dtype), arrangement.linear},
      placement);
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  size_t longest = 0;
  for (const Ids& ids : sequences) longest = std::max(longest, ids.size());
  std::vector<std::vector<float>> logits(sequences.size());
  run_ranks(arrangement.ranks, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, arrangement.options);
    std::vector<size_t> mine;
    std::vector<KvCache> caches;
    for (auto i = static_cast<size_t>(comm.rank()); i < sequences.size();
         i += static_cast<size_t>(arrangement.ranks)) {
      mine.push_back(i);
      caches.emplace_back(model.config, static_cast<int64_t>(longest), arrangement.kv);
    }
    for (size_t begin = 0; begin < longest; begin += arrangement.chunk) {
      std::vector<Chunk> batch;
      size_t rows = 0;
      for (size_t m = 0; m < mine.size(); ++m) {
        const std::span<const int32_t> ids = sequences[mine[m]];
        const size_t first = std::min(begin, ids.size()),
                     n = std::min(arrangement.chunk, ids.size() - first);
        batch.push_back({&caches[m], ids.subspan(first, n), Chunk::Logits::kAll});
        rows += n;
      }
      std::vector<float> out(rows * vocab);
      decoder.step(batch,
                   Rows(out.data(), static_cast<int64_t>(rows), static_cast<int64_t>(vocab)));
      auto from = out.begin();
      for (size_t m = 0; m < mine.size(); ++m) {
        const auto end = from + static_cast<std::ptrdiff_t>(batch[m].tokens.size() * vocab);
        logits[mine[m]].insert(logits[mine[m]].end(), from, end);
        from = end;
      }
    }
  });
  return logits;
}

// The largest |a - b| of any row over that row's norm in b.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b,
                             size_t cols) {
  if (a.size() != b.size()) return 1e30;
  double worst = 0.0;
  for (size_t row = 0; row < b.size(); row += cols) {
    double norm = 0.0, error = 0.0;
    for (size_t i = row; i < row + cols; ++i) {
      norm += double{b[i]} * double{b[i]};
      const double difference = std::abs(double{a[i]} - double{b[i]});
      error = difference <= error ? error : difference;  // NaN wins
    }
    const double relative = error / std::sqrt(norm);
    worst = relative <= worst ? worst : relative;
  }
  return worst;
}

// What bf16 may be off, as relative_error(). A rounding is off by at most u = 2^-9. Each layer has
// four stages of linear maps (q/k/v, o, gate/up, down) with weights and inputs rounded, the head is
// one more; the roundings are independent, so the stages' errors, 2 u of the row's norm each, add
// up as squares.
inline double bf16_tolerance(const ModelConfig& config) {
  return 2 * 0x1p-9 * std::sqrt(4 * config.num_hidden_layers + 1);
}

}  // namespace trimtab
