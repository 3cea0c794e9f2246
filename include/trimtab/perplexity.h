// SPDX-License-Identifier: Apache-2.0
// How well a model foretells a text: what a format of its weights, keys and values costs in
// quality.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trimtab/decoder.h"
#include "trimtab/kv_format.h"

namespace trimtab {

struct PerplexityOptions {
  // A longer sequence is cut into windows of so many tokens, which know nothing of each other; the
  // last one may be shorter. 0: as many as max_position_embeddings, or the whole sequence where the
  // model has no such limit. At least 2, and at most max_position_embeddings.
  int64_t window = 0;
  KvFormat kv = KvFormat::kF32;
  // Called after each step, with the tokens of all windows of this rank's group that went through
  // the decoder and those that there are.
  std::function<void(int64_t done, int64_t of)> progress = {};
};

struct Perplexity {
  int64_t tokens = 0;   // tokens that were foretold: all of a window but its first
  double nats = 0;      // the sum of -log(probability) over them
  int64_t windows = 0;  // those that had a token to foretell

  double value() const;           // exp(nats / tokens)
  double bits_per_token() const;  // nats / tokens / log(2)
};

// Runs token sequences through the decoder and compares the probabilities with the tokens that
// follow. Windows are shared out over the data-parallel groups; a result has the same bits on any
// number of them where the logits have. Collective; sequences and options (except `progress`) must
// be the same on every rank. NaN or infinite logits make `nats` NaN. Throws InvalidArgument, on
// every rank and before the first step, for ids outside the vocabulary, for a window that can't be
// and where no sequence has two tokens.
Perplexity measure_perplexity(Decoder& decoder, std::span<const std::vector<int32_t>> sequences,
                              const PerplexityOptions& options = {});

}  // namespace trimtab
