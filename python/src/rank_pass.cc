// SPDX-License-Identifier: Apache-2.0
#include "rank_pass.h"

#include <algorithm>
#include <utility>

#include "base/rows.h"

namespace trimtab::python {
namespace {

size_t row_bytes(int64_t rows, int64_t cols, DType dtype) {
  return Workspace::padded(shape_bytes(dtype, rows, cols));
}

// The rank's even share of the tokens.
RoutedTokens tokens_of_rank(const RoutedTokens& all, int top_k, const Communicator& comm) {
  const int64_t first = all.x.rows * comm.rank() / comm.size();
  const int64_t count = all.x.rows * (comm.rank() + 1) / comm.size() - first;
  const int64_t begin = first * top_k, picks = count * top_k;
  return {all.x.slice(first, count), all.ids.subspan(begin, picks),
          all.weights.subspan(begin, picks), all.out.slice(first, count)};
}

std::span<const int32_t> physical(std::span<const int64_t> ids, const std::vector<int32_t>& log2phy,
                                  Workspace& memory) {
  const std::span<int32_t> slots = memory.take<int32_t>(ids.size());
  std::ranges::transform(ids, slots.begin(), [&](int64_t id) {
    return id >= 0 && id < std::ssize(log2phy) ? log2phy[id] : -1;
  });
  return slots;
}

void run(RankLayer& layer, const RoutedTokens& tokens, int top_k, Lane& lane) {
  const Experts& experts = *layer.experts;
  Workspace& memory = lane.workspace;
  ConstRows x = tokens.x;
  if (x.dtype != experts.dtype()) {
    const Rows converted = memory.take_rows(x.rows, x.cols, experts.dtype());
    convert_rows(x, converted, lane.team);
    x = converted;
  }
  const ExchangePtr exchange =
      layer.dispatcher->dispatch({.x = x,
                                  .ids = physical(tokens.ids, layer.log2phy, memory),
                                  .weights = tokens.weights,
                                  .top_k = top_k},
                                 lane);
  exchange->wait(Stage::kArrived);
  const Tokens& arrived = exchange->tokens();
  for (size_t s = 0; s < layer.received.size(); ++s) layer.received[s] += arrived.counts[s];
  const Rows y = memory.take_rows(arrived.x.rows, experts.hidden(), DType::kF32);
  experts.run(arrived, y, memory.take<std::byte>(experts.scratch_bytes(arrived.x.rows)), lane.team);
  exchange->send_back(y, experts.left());
  exchange->wait(Stage::kReturned);
  if (tokens.out.dtype == DType::kF32) {
    exchange->finish(tokens.out);
  } else {
    const Rows out = memory.take_rows(tokens.out.rows, tokens.out.cols, DType::kF32);
    exchange->finish(out);
    convert_rows(out, tokens.out, lane.team);
  }
  exchange->wait(Stage::kDrained);
}

}  // namespace

RankState::RankState(std::unique_ptr<Communicator> end, const Dispatcher& dispatcher,
                     size_t workspace_bytes, int threads)
    : comm(std::move(end)),
      owned_groups(dispatcher.make_groups(*comm)),
      groups(pointers_to(owned_groups)),
      workspace(comm->allocate(workspace_bytes)),
      team(threads, Team::Helpers::kVisitors),
      lane{*comm, workspace, team, groups} {}

size_t pass_bytes(const RankLayer& layer, int64_t max_tokens, int top_k) {
  const int64_t hidden = layer.experts->hidden(), max_rows = layer.dispatcher->max_rows();
  return row_bytes(max_tokens, hidden, DType::kF32) +                 // x converted
         row_bytes(max_tokens, top_k, DType::kI32) +                  // physical ids
         layer.dispatcher->workspace_bytes() +                        //
         row_bytes(max_rows, hidden, DType::kF32) +                   // y
         Workspace::padded(layer.experts->scratch_bytes(max_rows)) +  //
         row_bytes(max_tokens, hidden, DType::kF32);                  // out before it is rounded
}

void run_pass(RankLayer& layer, const RoutedTokens& all, int top_k, RankState& state) noexcept {
  const size_t mark = state.workspace.mark();
  try {
    run(layer, tokens_of_rank(all, top_k, *state.comm), top_k, state.lane);
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
