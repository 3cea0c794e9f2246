// SPDX-License-Identifier: Apache-2.0
#include "rank_pass.h"

#include <algorithm>
#include <utility>

namespace trimtab::python {
namespace {

template <class Id>
void copy_ids(ConstRows ids, int num_experts, std::span<int32_t> to) {
  const std::span from(reinterpret_cast<const Id*>(ids.data), to.size());
  std::ranges::transform(from, to.begin(), [num_experts](Id id) {
    return id >= 0 && id < num_experts ? static_cast<int32_t>(id) : -1;
  });
}

// The ids as the layer takes them.
std::span<const int32_t> layer_ids(ConstRows ids, int num_experts, Workspace& memory) {
  const std::span<int32_t> to = memory.take<int32_t>(ids.rows * ids.cols);
  if (ids.dtype == DType::kI64) {
    copy_ids<int64_t>(ids, num_experts, to);
  } else {
    copy_ids<int32_t>(ids, num_experts, to);
  }
  return to;
}

void run(RankLayer& rank, const RoutedTokens& tokens, Lane& lane, Output output) {
  const MoeLayer& layer = rank.layer;
  const Rows out = output == Output::kWritten
                       ? tokens.out
                       : lane.workspace.take_rows(tokens.x.rows, layer.hidden(), DType::kF32);
  const auto ids = layer_ids(tokens.ids, layer.num_experts(), lane.workspace);
  std::ranges::fill(rank.counts, 0);
  rank.nanoseconds = 0;
  trimtab::run(
      layer.forward({tokens.x, ids, tokens.weights}, out, lane,
                    {.local_counts = rank.counts, .expert_nanoseconds = &rank.nanoseconds}));
  for (size_t slot = 0; slot < rank.counts.size(); ++slot) rank.received[slot] += rank.counts[slot];
}

}  // namespace

RankState::RankState(std::unique_ptr<Communicator> end, const ParallelLayout& layout,
                     const Dispatcher& dispatcher, size_t workspace_bytes, int threads)
    : comm(std::move(end)),
      layout_groups(make_layout_groups(layout, *comm)),
      owned_groups(dispatcher.make_groups(experts_comm())),
      groups(pointers_to(owned_groups)),
      workspace(comm->allocate(workspace_bytes)),
      team(threads, Team::Helpers::kVisitors),
      lane{experts_comm(), workspace, team, {}} {
  if (layout_groups.tokens) groups.push_back(layout_groups.tokens.get());
  lane.groups = groups;
}

size_t pass_bytes(const MoeLayer& layer, int64_t max_tokens, Output output) {
  size_t most = 0;
  for (const DType x : {DType::kF32, DType::kBF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      most = std::max(most, layer.workspace_bytes(max_tokens, {x, out, /*routed=*/true}));
    }
  }
  if (output == Output::kDropped)
    most += Workspace::padded(shape_bytes(DType::kF32, max_tokens, layer.hidden()));
  return most + Workspace::padded(shape_bytes(DType::kI32, max_tokens, layer.picks_per_token()));
}

void run_pass(RankLayer& layer, const RoutedTokens& tokens, RankState& state,
              Output output) noexcept {
  const size_t mark = state.workspace.mark();
  try {
    run(layer, tokens, state.lane, output);
  } catch (const std::exception& error) {
    state.error = std::current_exception();
    state.comm->abort(error.what());
  } catch (...) {
    state.error = std::current_exception();
    state.comm->abort("an exception of unknown type");
  }
  state.workspace.release(mark);
}

}  // namespace trimtab::python
