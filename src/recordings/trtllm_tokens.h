// SPDX-License-Identifier: Apache-2.0
// What TensorRT-LLM's statistics may hold beside counts: the experts of each token
// (rank{r}_raw.safetensors, or token_selected_experts_rank{r}.safetensors of an earlier version,
// tensors [tokens, top_k] of the rank's own tokens), and how often two experts were picked together
// (cooccurrence_rank{r}.safetensors, tensors [experts, experts]).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "recordings/trtllm_tensors.h"
#include "trimtab/token_recorder.h"

namespace trimtab {

// Counts by iteration and layer: [experts].
using TrtllmCounts = std::map<TrtllmKey, std::vector<int64_t>>;

// The tokens of one rank.
struct TrtllmRankTokens {
  TokenSample sample;
  TrtllmCounts counts;  // the tokens that picked each expert
};
// num_experts: 0: the highest id + 1. num_ranks: how many share the bound on the sample. Throws
// FormatError where a layer has other numbers of tokens or picks than the first, an expert is out
// of range or comes twice, or a layer is missing in an iteration. Picks of -1 are padding.
TrtllmRankTokens read_trtllm_tokens(const TrtllmFile& file, int64_t num_experts, int num_ranks);

// How often experts were picked together, summed over iterations and ranks.
class TrtllmPairs {
 public:
  // Throws FormatError for a matrix that is not square, has another size than those before, is not
  // symmetric, or says that a pair was picked more often than one of its experts.
  void add(const TrtllmFile& file);

  // The diagonals, which count the tokens that picked each expert.
  const TrtllmCounts& counts() const { return counts_; }
  // Pairs in the place of tokens, as often as the counts say (TokenSample::is_of_pairs). Empty when
  // a layer has no pair.
  TokenSample sample() const;

 private:
  int64_t experts_ = 0;
  TrtllmCounts counts_;
  std::map<int, std::vector<int64_t>> pairs_;  // by layer: [experts, experts], those above the
                                               // diagonal
};

}  // namespace trimtab
