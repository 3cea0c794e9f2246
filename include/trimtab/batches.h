// SPDX-License-Identifier: Apache-2.0
// These functions run the forward pass of a batch in parts: as two microbatches that hide each
// other's waits, or in chunks, where the batch is longer than what memory is reserved for. Ranks
// agree on the parts, so that all make the same calls: each function is collective over the lanes'
// group.
#pragma once

#include <cstdint>

#include "trimtab/layer.h"

namespace trimtab {

// Does what layer.forward() does with all of in, in the lane. When every rank is willing and has at
// least 2 tokens, the batch is cut in two halves that run overlapped, the second in the other lane;
// one rank is enough for nobody to cut. Returns whether it was cut. The lanes are over the same
// ranks, each with an order of its own. Nothing else may be in flight in them.
bool forward_overlapped(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                        Lane& lane, Lane& other, bool willing, const ForwardOptions& options = {});

// The agreement of forward_overlapped() and what it does when all agree, apart: so layers that run
// one after another with as many tokens need one agreement. can_halve() is collective; it returns,
// on every rank, whether all are willing and have at least 2 tokens. Calls of forward_in_halves()
// are then the same on every rank. It throws InvalidArgument where this rank has fewer than 2.
bool can_halve(int64_t tokens, bool willing, Lane& lane);
void forward_in_halves(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                       Lane& lane, Lane& other, const ForwardOptions& options = {});

// Does what layer.forward() does, in pieces of at most chunk_tokens (>= 1, the same on every rank),
// as many as the rank with most tokens needs; those that have fewer take part with none. Every
// chunk counts its rows anew; local_counts get the sum. Returns how many chunks there were.
int64_t forward_in_chunks(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                          Lane& lane, int64_t chunk_tokens, const ForwardOptions& options = {});

}  // namespace trimtab
