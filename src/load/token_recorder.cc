// SPDX-License-Identifier: Apache-2.0
#include "trimtab/token_recorder.h"

#include <algorithm>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Keeps the tokens 0, every, 2 every, ... of a sample.
void keep_every(TokenSample& sample, int64_t every) {
  if (every == 1) return;
  const int64_t row = int64_t{sample.num_layers} * sample.top_k;
  int64_t kept = 0;
  for (int64_t t = 0; t < sample.num_tokens(); t += every, ++kept)
    std::copy_n(sample.ids.begin() + t * row, row, sample.ids.begin() + kept * row);
  sample.ids.resize(cells(kept, row));
  sample.stride *= every;
}

}  // namespace

int64_t sampled_tokens_of_rank(int num_layers, int top_k, int num_ranks) {
  constexpr int64_t kMostPicks = int64_t{1} << 22;
  const int64_t tokens = std::min(kMaxSampledTokens, kMostPicks / num_layers / top_k);
  return std::max<int64_t>(1, tokens / num_ranks);
}

TokenRecorder::TokenRecorder(int num_layers, int num_experts, int top_k, int64_t max_tokens)
    : max_tokens_(max_tokens),
      sample_{.num_layers = num_layers, .num_experts = num_experts, .top_k = top_k} {
  if (num_layers >= 1 && num_experts >= 1 && top_k >= 1 && max_tokens >= 1) return;
  throw InvalidArgument(cat("a recorder of ", max_tokens, " tokens of ", num_layers, " layers x ",
                            num_experts, " experts, ", top_k, " picks"));
}

void TokenRecorder::add(std::span<const int32_t> picks) {
  if (std::ssize(picks) != int64_t{sample_.num_layers} * sample_.top_k) {
    throw InvalidArgument(cat("a token of ", picks.size(), " picks, the recorder has ",
                              sample_.num_layers, " layers x ", sample_.top_k));
  }
  const auto [least, most] = std::ranges::minmax(picks);
  if (least < -1 || most >= sample_.num_experts)
    throw InvalidArgument(
        cat("a token picks expert ", least < -1 ? least : most, " of ", sample_.num_experts));
  if (least == -1) return;
  if (sample_.tokens_seen++ % sample_.stride != 0) return;
  sample_.ids.insert(sample_.ids.end(), picks.begin(), picks.end());
  if (sample_.num_tokens() > max_tokens_) keep_every(sample_, 2);
}

TokenSample merge_tokens(std::span<const TokenSample> parts, bool has_sources) {
  if (parts.empty()) throw InvalidArgument("no sampled tokens to be merged");
  const TokenSample& first = parts[0];
  TokenSample sum{
      .num_layers = first.num_layers, .num_experts = first.num_experts, .top_k = first.top_k};
  sum.is_of_pairs = first.is_of_pairs;
  for (const TokenSample& part : parts) sum.stride = std::max(sum.stride, part.stride);
  for (size_t i = 0; i < parts.size(); ++i) {
    TokenSample part = parts[i];
    if (part.num_layers != sum.num_layers || part.num_experts != sum.num_experts ||
        part.top_k != sum.top_k || part.is_of_pairs != sum.is_of_pairs) {
      throw InvalidArgument(cat("sampled tokens of ", part.num_layers, " layers x ",
                                part.num_experts, " experts, ", part.top_k, " picks; the first of ",
                                sum.num_layers, " x ", sum.num_experts, ", ", sum.top_k));
    }
    // Strides of recorders are powers of two; of other samples the nearest multiple will do.
    keep_every(part, std::max<int64_t>(1, sum.stride / part.stride));
    sum.ids.insert(sum.ids.end(), part.ids.begin(), part.ids.end());
    sum.tokens_seen += part.tokens_seen;
    if (has_sources)
      sum.source_rank.insert(sum.source_rank.end(), cells(part.num_tokens()),
                             static_cast<int32_t>(i));
  }
  if (has_sources) sum.num_ranks = static_cast<int>(parts.size());
  return sum;
}

}  // namespace trimtab
