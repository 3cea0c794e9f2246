// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "base/rows.h"
#include "layer/call.h"
#include "trimtab/error.h"
#include "trimtab/layer.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

template <class... Parts>
void check(bool fits, const Parts&... what) {
  if (!fits) throw InvalidArgument(cat("MoE layer: ", what...));
}

void check_dispatcher(const MoeLayer::Parts& p) {
  const DispatchShape shape = p.dispatcher->shape();
  check(shape.hidden == p.experts->hidden() && p.experts->accepts(shape.dtype),
        "the dispatcher moves ", name(shape.dtype), " rows of ", shape.hidden,
        ", the experts take ", name(p.experts->dtype()), " rows of ", p.experts->hidden());
  check(!p.weight_on_input || p.router->picks_per_token() == 1,
        "weights on the input need one pick a token, not ", p.router->picks_per_token());
  check(!p.weight_on_input || shape.dtype != DType::kF8E4M3,
        "weights on the input can't weigh F8_E4M3 rows");
  check(shape.top_k >= p.router->picks_per_token(), "the dispatcher is made for ", shape.top_k,
        " picks a token, the router gives ", p.router->picks_per_token());
  const int rank = p.dispatcher->rank(), num_local = SlotRanges(shape.first_slots).count(rank);
  check(num_local == p.experts->num_local(), "rank ", rank, " holds ", num_local,
        " slots, there are ", p.experts->num_local(), " experts");
}

void check_replicas(const MoeLayer::Parts& p) {
  check(p.replicas != nullptr, "the table of replicas is missing");
  const SplitTable& table = *p.replicas;
  const RouterConfig& router = p.router->config();
  const int num_placed = router.num_experts + router.num_appended_experts;
  check(table.num_experts == num_placed, "replicas of ", table.num_experts,
        " experts, the router picks from ", num_placed);
  const DispatchShape shape = p.dispatcher->shape();
  const SlotRanges slots(shape.first_slots);
  check(table.num_ranks == slots.num_ranks() && table.num_slots == slots.num_slots(),
        "replicas in ", table.num_slots, " slots of ", table.num_ranks,
        " ranks, the dispatcher knows ", slots.num_slots(), " of ", slots.num_ranks());
  for (int slot = 0; slot < table.num_slots; ++slot) {
    check(table.rank_of_slot[slot] == slots.rank_of(slot), "slot ", slot, " is on rank ",
          table.rank_of_slot[slot], " for the replicas, on another for the dispatcher");
  }
  check_cost(p.split, table, p.cost.get());
  check(p.split == SplitRule::kStatic || shape.num_experts == num_placed, "dispatcher ",
        p.dispatcher->name(), " shares out over replicas of ", shape.num_experts,
        " experts, not of ", num_placed);
}

void check_parts(const MoeLayer::Parts& p) {
  check(p.gate && p.router && p.dispatcher && p.experts,
        "gate, router, dispatcher and experts are all needed");
  const RouterConfig& router = p.router->config();
  check(p.gate->in() == p.experts->hidden(), "the gate reads ", p.gate->in(),
        " values, the experts ", p.experts->hidden());
  check(p.gate->out() == router.num_experts + router.num_zero_experts, "the gate gives ",
        p.gate->out(), " logits, the router wants ", router.num_experts, " experts + ",
        router.num_zero_experts, " zero experts");
  check(p.dispatcher->format() == p.experts->format(), "dispatcher ", p.dispatcher->name(),
        " and the experts use different row formats");
  check(p.experts->left() != Left::kSum || p.dispatcher->carries_weights(),
        "the experts apply router weights, which dispatcher ", p.dispatcher->name(),
        " does not carry");
  check(p.dispatcher->output_is_reduced(), "dispatcher ", p.dispatcher->name(),
        " leaves partial sums, which the layer does not add up");
  check(!p.shared || p.shared->hidden() == p.experts->hidden(),
        "shared and routed experts differ in hidden size");
  check(p.experts->dtype() == DType::kF32 || p.experts->dtype() == DType::kBF16,
        "experts that take ", name(p.experts->dtype()), " rows");
  check_dispatcher(p);
  check_replicas(p);
}

// All that a caller can get wrong, before the first peer hears of the call: later it would cost the
// whole group.
void check_call(const Experts& experts, ConstRows x, ConstRows out, const ForwardOptions& options) {
  const int64_t hidden = experts.hidden();
  check(x.dtype == DType::kF32 && out.dtype == DType::kF32 && x.cols == hidden &&
            out.cols == hidden && x.rows == out.rows && x.rows >= 0,
        "x ", name(x.dtype), " [", x.rows, ", ", x.cols, "], out ", name(out.dtype), " [", out.rows,
        ", ", out.cols, "], expected both F32 [tokens, ", hidden, "]");
  check(x.stride >= hidden && out.stride >= hidden, "rows of x are ", x.stride, ", of out ",
        out.stride, " elements apart, at least ", hidden, " are needed");
  check(!overlap(x, out), "x and out overlap");
  check(options.local_counts.empty() || std::ssize(options.local_counts) == experts.num_local(),
        "local_counts has ", options.local_counts.size(), " entries for ", experts.num_local(),
        " slots");
}

// The rows as the experts want them: x itself, or rounded to bf16 in the workspace.
ConstRows as_dtype(ConstRows x, DType dtype, Workspace& workspace) {
  if (dtype == x.dtype) return x;
  const Rows rounded = workspace.take_rows(x.rows, x.cols, dtype);
  convert_rows(x, rounded);
  return rounded;
}

// What travels: the rows as the experts take them, or what these would quantise them to, in the
// workspace.
struct Travelling {
  ConstRows rows, scales;
};
Travelling travelling(ConstRows rows, DType dtype, Lane& lane) {
  if (!is_quantised(dtype)) return {rows, {}};
  const ScaleShape shape = scale_shape(dtype, rows.cols);
  const Rows q = lane.workspace.take_rows(rows.rows, rows.cols, dtype);
  const Rows scales = lane.workspace.take_rows(rows.rows, shape.cols, shape.dtype);
  lane.team.for_each(rows.rows, [&](int64_t t) {
    quantize_rows(rows.slice(t, 1), q.slice(t, 1), scales.slice(t, 1));
  });
  return {q, scales};
}

// For the dispatcher; the static rule is applied before it.
Replicas shared_out(const MoeLayer::Parts& parts) {
  return parts.split == SplitRule::kStatic
             ? Replicas{}
             : Replicas{parts.replicas.get(), parts.split, parts.cost.get()};
}

int64_t rows_of(const Tokens& tokens) {
  return std::accumulate(tokens.counts.begin(), tokens.counts.end(), int64_t{0});
}

// Zero experts return their input: added once, by the token's owner.
void add_identity(ConstRows x, std::span<const float> weights, Rows out) {
  for (int64_t t = 0; t < out.rows; ++t) {
    const WeightedRow row{x.row_as<float>(t), weights[t]};
    if (row.weight != 0.0F) add_rows(std::span(&row, 1), out.row_as<float>(t), out.cols, true);
  }
}

}  // namespace

struct MoeLayer::Routed {
  std::span<int32_t> ids;  // [tokens, picks_per_token] physical with the static rule, else logical
  std::span<float> weights;
  std::span<float> identity;  // [tokens], or empty without zero experts
};

MoeLayer::MoeLayer(Parts parts) : parts_(std::move(parts)) {
  check_parts(parts_);
}

void MoeLayer::replace(std::shared_ptr<const Experts> experts,
                       std::shared_ptr<const SplitTable> replicas) {
  Parts next = parts_;
  next.experts = std::move(experts);
  next.replicas = std::move(replicas);
  check_parts(next);
  parts_ = std::move(next);
}

size_t MoeLayer::workspace_bytes(int64_t max_tokens) const {
  const RouterConfig& router = parts_.router->config();
  const int64_t hidden = parts_.experts->hidden();
  const int64_t max_rows = parts_.dispatcher->max_rows();
  const auto bytes = [](int64_t rows, int64_t cols, DType dtype) {
    return Workspace::padded(shape_bytes(dtype, rows, cols));
  };
  size_t total = Call::promise_type::kMaxFrameBytes;
  total += bytes(max_tokens, parts_.gate->out(), DType::kF32);
  total += 2 * bytes(max_tokens, parts_.router->picks_per_token(), DType::kF32);
  total += bytes(router.num_zero_experts > 0 ? max_tokens : 0, 1, DType::kF32);
  total += bytes(max_tokens, hidden, parts_.experts->dtype());
  if (const DType dtype = parts_.dispatcher->shape().dtype; is_quantised(dtype)) {
    const ScaleShape scales = scale_shape(dtype, hidden);
    total += bytes(max_tokens, hidden, dtype) + bytes(max_tokens, scales.cols, scales.dtype);
  }
  total += parts_.dispatcher->workspace_bytes();
  total += bytes(max_rows, hidden, DType::kF32) +
           Workspace::padded(parts_.experts->scratch_bytes(max_rows));
  if (parts_.shared) {
    total += parts_.shared->workspace_bytes(max_tokens) + bytes(max_tokens, hidden, DType::kF32);
  }
  return total;
}

MoeLayer::Routed MoeLayer::route(ConstRows x, Lane& lane, const ForwardOptions& options) const {
  const RouterConfig& config = parts_.router->config();
  const int64_t tokens = x.rows, picks = tokens * parts_.router->picks_per_token();
  const Rows logits = lane.workspace.take_rows(x.rows, parts_.gate->out(), DType::kF32);
  const Routed routed{lane.workspace.take<int32_t>(picks), lane.workspace.take<float>(picks),
                      lane.workspace.take<float>(config.num_zero_experts > 0 ? tokens : 0)};
  parts_.gate->run(x, logits, lane.team);
  parts_.router->route(logits,
                       {.hidden = x,
                        .token_ids = options.token_ids,
                        .capture = options.capture,
                        .layer = parts_.layer,
                        .first_token = options.first_token},
                       {.ids = routed.ids, .weights = routed.weights, .identity = routed.identity});
  if (parts_.split == SplitRule::kStatic) {
    const Table slots(parts_.replicas->static_slot, parts_.replicas->num_experts);
    const std::span<const int32_t> slot_of = slots[parts_.dispatcher->rank()];
    for (int32_t& id : routed.ids) {
      if (id >= 0) id = slot_of[id];
    }
  }
  return routed;
}

Rows MoeLayer::run_experts(const Tokens& tokens, Lane& lane, const ForwardOptions& options) const {
  for (size_t slot = 0; slot < options.local_counts.size(); ++slot)
    options.local_counts[slot] += tokens.counts[slot];
  const Rows y = lane.workspace.take_rows(tokens.x.rows, parts_.experts->hidden(), DType::kF32);
  const size_t mark = lane.workspace.mark();
  const auto scratch = lane.workspace.take<std::byte>(parts_.experts->scratch_bytes(tokens.x.rows));
  parts_.experts->run(tokens, y, scratch, lane.team);
  lane.workspace.release(mark);
  return y;
}

Call MoeLayer::forward(ConstRows x, Rows out, Lane& lane, ForwardOptions options) const {
  check_call(*parts_.experts, x, out, options);
  // The frame is in the workspace already. How many rows peers will send is not known yet: there
  // must be room for most.
  const size_t left =
      lane.workspace.capacity() - lane.workspace.mark() + Call::promise_type::kMaxFrameBytes;
  check(left >= workspace_bytes(x.rows), "a call with ", x.rows, " tokens takes up to ",
        workspace_bytes(x.rows), " bytes of workspace, ", left, " are left");
  TraceSteps trace(lane.trace, parts_.layer);
  const Routed routed = route(x, lane, options);
  trace.step("route");
  const ConstRows rows = as_dtype(x, parts_.experts->dtype(), lane.workspace);
  const Travelling sent = travelling(rows, parts_.dispatcher->shape().dtype, lane);
  const ExchangePtr exchange =
      parts_.dispatcher->dispatch({.x = sent.rows,
                                   .ids = routed.ids,
                                   .weights = routed.weights,
                                   .top_k = parts_.router->picks_per_token(),
                                   .weight_on_input = parts_.weight_on_input,
                                   .scales = sent.scales,
                                   .replicas = shared_out(parts_),
                                   .placement = parts_.replicas->fingerprint + parts_.layer},
                                  lane);
  trace.step("dispatch");

  SharedExperts::FirstHalf half;
  if (parts_.shared) {
    half = parts_.shared->first(x, rows, lane);
    trace.step("shared experts");
  }
  co_await Until{*exchange, Stage::kArrived};

  trace.resume();
  exchange->send_back(run_experts(exchange->tokens(), lane, options), parts_.experts->left());
  if (lane.trace != nullptr) {
    const int64_t received = rows_of(exchange->tokens());
    trace.step("experts", {"rows", received});
    trace.counter("expert rows", received);
  }

  Rows shared;
  if (parts_.shared) {
    shared = lane.workspace.take_rows(x.rows, x.cols, DType::kF32);
    parts_.shared->second(half, shared, lane);
    trace.step("shared experts");
  }
  co_await Until{*exchange, Stage::kReturned};

  trace.resume();
  exchange->finish(out);
  if (parts_.shared) add_rows(shared, out);
  if (!routed.identity.empty()) add_identity(x, routed.identity, out);
  trace.step("combine");
  co_await Until{*exchange, Stage::kDrained};
}

}  // namespace trimtab
