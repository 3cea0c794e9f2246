// SPDX-License-Identifier: Apache-2.0
#include "rank_pass.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "trimtab/table.h"

namespace trimtab::python {
namespace {

std::vector<Communicator*> pointers_to(const std::vector<std::unique_ptr<Communicator>>& groups) {
  std::vector<Communicator*> pointers;
  for (const auto& group : groups) pointers.push_back(group.get());
  return pointers;
}

size_t row_bytes(int64_t rows, int64_t cols, DType dtype) {
  return Workspace::padded(cells(rows * cols, bits(dtype)) / 8);
}

void round_row(const float* from, int64_t cols, bf16_t* to) {
  for (int64_t i = 0; i < cols; ++i) to[i] = to_bf16(from[i]);
}

// Rows of one of the types f32 and bf16 as the other.
void convert(const ConstRows& from, const Rows& to, Team& team) {
  team.for_each(from.rows, [&](int64_t t) {
    if (to.dtype == DType::kBF16)
      return round_row(from.row_as<float>(t), from.cols, to.row_as<bf16_t>(t));
    const bf16_t* source = from.row_as<bf16_t>(t);
    float* wide = to.row_as<float>(t);
    for (int64_t i = 0; i < from.cols; ++i) wide[i] = to_float(source[i]);
  });
}

// The rank's even share of the tokens.
RoutedTokens share(const RoutedTokens& all, int top_k, const Communicator& comm) {
  const int64_t first = all.x.rows * comm.rank() / comm.size();
  const int64_t count = all.x.rows * (comm.rank() + 1) / comm.size() - first;
  const auto begin = static_cast<size_t>(first * top_k), picks = static_cast<size_t>(count * top_k);
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
    convert(x, converted, lane.team);
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
    convert(out, tokens.out, lane.team);
  }
  exchange->wait(Stage::kDrained);
}

}  // namespace

Seat::Seat(std::unique_ptr<Communicator> end, const Dispatcher& dispatcher, size_t workspace_bytes,
           int threads)
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

void run_pass(RankLayer& layer, const RoutedTokens& all, int top_k, Seat& seat) noexcept {
  const size_t mark = seat.workspace.mark();
  try {
    run(layer, share(all, top_k, *seat.comm), top_k, seat.lane);
  } catch (const std::exception& error) {
    seat.error = std::current_exception();
    seat.comm->abort(error.what());
  } catch (...) {
    seat.error = std::current_exception();
    seat.comm->abort("an exception of unknown type");
  }
  seat.workspace.release(mark);
}

}  // namespace trimtab::python
