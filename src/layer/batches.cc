// SPDX-License-Identifier: Apache-2.0
#include "trimtab/batches.h"

#include <algorithm>

#include "base/cat.h"
#include "layer/call.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The smallest and the largest value of all ranks.
struct Range {
  int64_t least, most;
};
Range range_over_ranks(int64_t own, Lane& lane) {
  const auto ranks = static_cast<size_t>(lane.comm.size());
  const size_t mark = lane.workspace.mark();
  const std::span<int64_t> all = lane.workspace.take<int64_t>(ranks);
  const std::span<int64_t> bytes = lane.workspace.take<int64_t>(ranks);
  Pending pending =
      lane.comm.all_gather_v(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(all), bytes);
  pending.wait();
  const Range range{*std::ranges::min_element(all), *std::ranges::max_element(all)};
  pending.wait_released();
  lane.workspace.release(mark);
  return range;
}

// tokens: of all parts together.
ForwardOptions options_of(const ForwardOptions& options, int64_t tokens, int64_t first,
                          int64_t count) {
  ForwardOptions part = options;
  part.first_token += first;
  if (!options.token_ids.empty()) {
    part.token_ids = options.token_ids.subspan(first, count);
  }
  if (!options.picks.empty()) {
    const int64_t top_k = std::ssize(options.picks) / tokens;
    part.picks = options.picks.subspan(first * top_k, count * top_k);
  }
  return part;
}

Call forward_part(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out, Lane& lane,
                  const ForwardOptions& options, int64_t first, int64_t count) {
  return layer.forward(in.slice(first, count), out.slice(first, count), lane,
                       options_of(options, in.x.rows, first, count));
}

}  // namespace

bool forward_overlapped(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                        Lane& lane, Lane& other, bool willing, const ForwardOptions& options) {
  layer.check(in, out, options);
  check_lanes(lane, other);
  if (!can_halve(in.x.rows, willing, lane)) {
    run(layer.forward(in, out, lane, options));
    return false;
  }
  forward_in_halves(layer, in, out, lane, other, options);
  return true;
}

bool can_halve(int64_t tokens, bool willing, Lane& lane) {
  return range_over_ranks(willing ? tokens : 0, lane).least >= 2;
}

void forward_in_halves(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                       Lane& lane, Lane& other, const ForwardOptions& options) {
  layer.check(in, out, options);
  if (in.x.rows < 2)
    throw InvalidArgument(cat("MoE layer: ", in.x.rows, " tokens can't be cut in two halves"));
  const int64_t half = (in.x.rows + 1) / 2;
  overlap(forward_part(layer, in, out, lane, options, 0, half),
          forward_part(layer, in, out, other, options, half, in.x.rows - half));
}

int64_t forward_in_chunks(const MoeLayer& layer, const LayerInput& in, const LayerOutput& out,
                          Lane& lane, int64_t chunk_tokens, const ForwardOptions& options) {
  layer.check(in, out, options);
  if (chunk_tokens < 1)
    throw InvalidArgument(cat("MoE layer: chunks of ", chunk_tokens, " tokens"));
  const int64_t most = range_over_ranks(in.x.rows, lane).most;
  const int64_t chunks = std::max<int64_t>(1, (most + chunk_tokens - 1) / chunk_tokens);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = std::min(in.x.rows, chunk * chunk_tokens);
    const int64_t count = std::min(chunk_tokens, in.x.rows - first);
    run(forward_part(layer, in, out, lane, options, first, count));
  }
  return chunks;
}

}  // namespace trimtab
