// SPDX-License-Identifier: Apache-2.0
// Records a sample of the tokens that one rank routes, for the traffic between ranks and nodes
// (traffic.h): every n-th token with the experts that it picked, n doubled whenever the sample is
// full, so that memory is bounded however long a run is. The sample depends on the order of tokens
// alone.
#pragma once

#include <cstdint>
#include <span>

#include "trimtab/traffic.h"

namespace trimtab {

// The most tokens of one rank's recorder, so that those of all ranks together are at most
// kMaxSampledTokens, and their picks at most 2^22. At least 1.
int64_t sampled_tokens_of_rank(int num_layers, int top_k, int num_ranks);

// One rank's. Not thread-safe.
class TokenRecorder {
 public:
  // max_tokens: the most that are kept, >= 1. Throws InvalidArgument for sizes below 1.
  TokenRecorder(int num_layers, int num_experts, int top_k, int64_t max_tokens);

  // The next token. picks: [layers, top_k] logical experts. A token with a pick of -1 anywhere is
  // padding and is passed over. Throws InvalidArgument for other sizes, and experts out of range.
  void add(std::span<const int32_t> picks);
  // What was recorded so far; its tokens have no source.
  const TokenSample& sample() const { return sample_; }

 private:
  int64_t max_tokens_;
  TokenSample sample_;
};

// The samples of all ranks, [ranks] in order: every n-th token of each rank, n the largest of the
// parts', so that ranks with more tokens have more. has_sources: a token comes from the rank whose
// part it is in; else its source is not known. Throws InvalidArgument when there are no parts or
// when they differ in layers, experts or top_k.
TokenSample merge_tokens(std::span<const TokenSample> parts, bool has_sources = true);

}  // namespace trimtab
