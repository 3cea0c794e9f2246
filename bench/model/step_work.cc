// SPDX-License-Identifier: Apache-2.0
#include "bench/model/step_work.h"

#include <algorithm>

#include "bench/experts/weight_dtype.h"

namespace trimtab::bench {
namespace {

double real(int64_t n) {
  return static_cast<double>(n);
}
double real_bytes(size_t n) {
  return static_cast<double>(n);
}

// Of a token, in all maps but routed experts and the head.
double linear_ops_of(const ModelConfig& config) {
  const double hidden = real(config.hidden_size);
  const double q = real(int64_t{config.num_attention_heads} * config.head_dim);
  const double kv = real(int64_t{config.num_key_value_heads} * config.head_dim);
  double ops = 0;
  for (const bool moe : config.is_moe_layer) {
    const double attention = 2 * hidden * q + 2 * hidden * kv;
    const double mlp =
        moe ? hidden * (3 * real(config.shared_intermediate_size) + real(config.router.num_experts))
            : 3 * hidden * real(config.intermediate_size);
    ops += 2 * (attention + mlp);
  }
  return ops;
}

}  // namespace

DotKind dot_of(WeightFormat format) {
  const auto found = std::ranges::find_if(weight_dtypes(), [&](const WeightDType& dtype) {
    return dtype.weights.scheme == format.scheme;
  });
  return found == weight_dtypes().end() ? DotKind::kF32 : found->dot;
}

std::vector<WorkOfChunk> work_of(std::span<const Chunk> batch) {
  std::vector<WorkOfChunk> work;
  int64_t added = 0;  // to the cache of the chunks so far that stand side by side
  for (size_t i = 0; i < batch.size(); ++i) {
    const Chunk& chunk = batch[i];
    const int64_t tokens = std::ssize(chunk.tokens);
    if (i == 0 || chunk.cache != batch[i - 1].cache) added = 0;
    const int64_t logits = chunk.logits == Chunk::Logits::kAll    ? tokens
                           : chunk.logits == Chunk::Logits::kLast ? std::min<int64_t>(tokens, 1)
                                                                  : 0;
    work.push_back({chunk.cache->length() + added, tokens, logits});
    added += tokens;
  }
  return work;
}

StepWork::StepWork(const DecoderWeights& weights, KvFormat kv, std::optional<size_t> expert_bytes)
    : weights_(weights),
      bytes_(weights.bytes_by_use()),
      expert_bytes_(real_bytes(expert_bytes.value_or(weights.expert_bytes()))),
      linear_(dot_of(weights.linear_format())),
      experts_(dot_of(weights.expert_format())),
      kv_bytes_(real_bytes(KvCache::bytes_per_position(weights.config(), kv)) /
                real(weights.config().num_hidden_layers)),
      linear_ops_(linear_ops_of(weights.config())) {}

void StepWork::add(std::span<const WorkOfChunk> chunks) {
  const ModelConfig& config = weights_.config();
  int64_t tokens = 0, logits = 0;
  double attention_ops = 0, attention_bytes = 0;
  const double ops_of_pair = 4 * real(int64_t{config.num_attention_heads} * config.head_dim);
  for (const bool sliding : {false, true}) {
    const bool narrow = sliding && config.sliding_window > 0;
    int64_t layers = config.num_hidden_layers;
    if (!config.is_sliding_layer.empty())
      layers = std::ranges::count(config.is_sliding_layer, sliding);
    else if (sliding)
      layers = 0;
    for (const WorkOfChunk& chunk : chunks) {
      const auto seen = [&](int64_t position) {
        return narrow ? std::min<int64_t>(position + 1, config.sliding_window) : position + 1;
      };
      int64_t pairs = 0;
      for (int64_t t = chunk.first; t < chunk.first + chunk.tokens; ++t) pairs += seen(t);
      const int64_t end = chunk.first + chunk.tokens;
      const int64_t read = narrow ? std::min(end, config.sliding_window + chunk.tokens - 1) : end;
      attention_ops += real(layers) * real(pairs) * ops_of_pair;
      attention_bytes += real(layers) * real(read) * kv_bytes_;
    }
  }
  for (const WorkOfChunk& chunk : chunks) {
    tokens += chunk.tokens;
    logits += chunk.logits;
  }
  if (tokens == 0) return;
  add(real(tokens) * linear_ops_, real_bytes(bytes_.others), linear_);
  add(attention_ops, attention_bytes, DotKind::kF32);
  if (logits == 0) return;
  add(2 * real(logits) * real(config.hidden_size) * real(config.vocab_size),
      real_bytes(bytes_.head), linear_);
}

void StepWork::add_experts(std::span<const int32_t> rows) {
  const ModelConfig& config = weights_.config();
  const double ops_of_row = 6 * real(config.hidden_size) * real(config.moe_intermediate_size);
  for (const int32_t n : rows) {
    if (n == 0) continue;
    ++active_experts_;
    add(ops_of_row * n, expert_bytes_, experts_);
  }
}

void StepWork::clear() {
  parts_.clear();
  active_experts_ = 0;
}

double StepWork::bytes() const {
  double bytes = 0;
  for (const WorkPart& work : parts_) bytes += work.part.bytes;
  return bytes;
}

}  // namespace trimtab::bench
