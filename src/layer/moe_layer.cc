// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "base/row_tasks.h"
#include "layer/call.h"
#include "layer/outputs.h"
#include "trimtab/error.h"
#include "trimtab/layer.h"
#include "trimtab/slot_ranges.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

using SteadyClock = std::chrono::steady_clock;

template <class... Parts>
void require(bool fits, const Parts&... what) {
  if (!fits) throw InvalidArgument(cat("MoE layer: ", what...));
}

int picks_per_token_of(const MoeLayer::Parts& p) {
  return p.router ? p.router->picks_per_token() : p.dispatcher->shape().top_k;
}

void check_dispatcher(const MoeLayer::Parts& p) {
  const DispatchShape shape = p.dispatcher->shape();
  require(shape.hidden == p.experts->hidden() &&
              (p.experts->accepts(shape.dtype) || p.experts->format() == Format::kStandard),
          "the dispatcher moves ", name(shape.dtype), " rows of ", shape.hidden,
          ", the experts take ", name(p.experts->dtype()), " rows of ", p.experts->hidden());
  const int picks = picks_per_token_of(p);
  require(!p.weight_on_input || picks == 1, "weights on the input need one pick a token, not ",
          picks);
  require(!p.weight_on_input || shape.dtype != DType::kF8E4M3,
          "weights on the input can't weigh F8_E4M3 rows");
  require(shape.top_k >= picks, "the dispatcher is made for ", shape.top_k,
          " picks a token, the router gives ", picks);
  const int rank = p.dispatcher->rank(), num_local = SlotRanges(shape.first_slots).count(rank);
  require(num_local == p.experts->num_local(), "rank ", rank, " holds ", num_local,
          " slots, there are ", p.experts->num_local(), " experts");
}

void check_replicas(const MoeLayer::Parts& p) {
  require(p.replicas != nullptr, "the table of replicas is missing");
  const SplitTable& table = *p.replicas;
  if (p.router) {
    const RouterConfig& router = p.router->config();
    const int num_placed = router.num_experts + router.num_appended_experts;
    require(table.num_experts == num_placed, "replicas of ", table.num_experts,
            " experts, the router picks from ", num_placed);
  }
  const DispatchShape shape = p.dispatcher->shape();
  const SlotRanges slots(shape.first_slots);
  require(table.num_ranks == slots.num_ranks() && table.num_slots == slots.num_slots(),
          "replicas in ", table.num_slots, " slots of ", table.num_ranks,
          " ranks, the dispatcher knows ", slots.num_slots(), " of ", slots.num_ranks());
  for (int slot = 0; slot < table.num_slots; ++slot) {
    require(table.rank_of_slot[slot] == slots.rank_of(slot), "slot ", slot, " is on rank ",
            table.rank_of_slot[slot], " for the replicas, on another for the dispatcher");
  }
  check_cost(p.split, table, p.cost.get());
  require(p.split == SplitRule::kStatic || shape.num_experts == table.num_experts, "dispatcher ",
          p.dispatcher->name(), " shares out over replicas of ", shape.num_experts,
          " experts, not of ", table.num_experts);
}

void check_gate(const MoeLayer::Parts& p) {
  require((p.gate != nullptr) == (p.router != nullptr), "a gate and a router come together");
  if (!p.gate) return;
  const RouterConfig& router = p.router->config();
  require(p.gate->in() == p.experts->hidden(), "the gate reads ", p.gate->in(),
          " values, the experts ", p.experts->hidden());
  require(p.gate->out() == router.num_experts + router.num_zero_experts, "the gate gives ",
          p.gate->out(), " logits, the router wants ", router.num_experts, " experts + ",
          router.num_zero_experts, " zero experts");
}

void check_parts(const MoeLayer::Parts& p) {
  require(p.dispatcher && p.experts, "dispatcher and experts are both needed");
  check_gate(p);
  require(p.dispatcher->format() == p.experts->format(), "dispatcher ", p.dispatcher->name(),
          " and the experts use different row formats");
  require(p.experts->left() != Left::kSum || p.dispatcher->carries_weights(),
          "the experts apply router weights, which dispatcher ", p.dispatcher->name(),
          " does not carry");
  require(p.experts->left() != Left::kNothing ||
              (p.dispatcher->kind().brings_tokens && !p.dispatcher->shape().exact_order),
          "the experts sum the picks of a token, which dispatcher ", p.dispatcher->name(),
          " does not bring together; take all_gather, or packed without exact_order, or experts "
          "that leave the sum");
  require(p.dispatcher->output_is_reduced(), "dispatcher ", p.dispatcher->name(),
          " leaves partial sums, which the layer does not add up");
  require(!p.shared || p.shared->hidden() == p.experts->hidden(),
          "shared and routed experts differ in hidden size");
  require(!p.shared_in_parts || (p.shared && p.dispatcher->sums_parts()),
          "parts of shared experts ",
          p.shared ? "need a dispatcher that sums parts over the ranks, which is not "
                   : "but no shared experts; dispatcher ",
          p.dispatcher->name());
  require(p.experts->dtype() == DType::kF32 || p.experts->dtype() == DType::kBF16,
          "experts that take ", name(p.experts->dtype()), " rows");
  check_dispatcher(p);
  check_replicas(p);
}

void check_rows(const char* what, ConstRows rows, int64_t tokens, int64_t hidden) {
  require((rows.dtype == DType::kF32 || rows.dtype == DType::kBF16) && rows.rows == tokens &&
              rows.rows >= 0 && rows.cols == hidden,
          what, " is ", name(rows.dtype), " [", rows.rows, ", ", rows.cols,
          "], expected F32 or BF16 [", tokens, ", ", hidden, "]");
  require(rows.stride >= hidden, "rows of ", what, " are ", rows.stride,
          " elements apart, at least ", hidden, " are needed");
}

void check_output(const char* what, Rows out, const LayerInput& in) {
  require(!overlap(out, in.x), "x and ", what, " overlap");
  require(!overlap(out, std::as_bytes(in.ids)) && !overlap(out, std::as_bytes(in.weights)) &&
              !overlap(out, std::as_bytes(in.identity)),
          "ids or weights and ", what, " overlap");
}

void check_outputs(const LayerInput& in, const LayerOutput& out, int64_t hidden) {
  check_rows("out", out.routed, in.x.rows, hidden);
  check_output("out", out.routed, in);
  if (!out.apart) return;
  check_rows("out of the shared experts", out.shared, in.x.rows, hidden);
  check_output("out of the shared experts", out.shared, in);
  require(out.shared.dtype == out.routed.dtype, "routed and shared outputs are ",
          name(out.routed.dtype), " and ", name(out.shared.dtype), ", expected one type");
  require(!overlap(out.routed, out.shared), "routed and shared outputs overlap");
}

// Ids and weights that a caller has brought.
void check_picks(const LayerInput& in, int picks, int num_experts) {
  const int64_t wanted = in.x.rows * picks;
  require(std::ssize(in.ids) == wanted && std::ssize(in.weights) == wanted, in.ids.size(),
          " ids and ", in.weights.size(), " weights for ", in.x.rows, " tokens of ", picks,
          " picks each");
  require(in.identity.empty() || std::ssize(in.identity) == in.x.rows, in.identity.size(),
          " weights of zero experts for ", in.x.rows, " tokens");
  const auto wrong =
      std::ranges::find_if(in.ids, [=](int32_t id) { return id < -1 || id >= num_experts; });
  if (wrong == in.ids.end()) return;
  const int64_t pick = wrong - in.ids.begin();
  require(false, "token ", pick / picks, ", pick ", pick % picks, ": expert ", *wrong,
          " is not in [-1, ", num_experts, ")");
}

// The rows as the experts want them: x itself, or another type of it in the workspace.
ConstRows as_dtype(ConstRows x, DType dtype, Lane& lane) {
  if (dtype == x.dtype) return x;
  const Rows converted = lane.workspace.take_rows(x.rows, x.cols, dtype);
  convert_rows(x, converted, lane.team);
  return converted;
}

// What travels: the rows as the experts take them, or another type of them in the workspace.
struct Travelling {
  ConstRows rows, scales;
};
Travelling travelling(ConstRows rows, DType dtype, Lane& lane) {
  if (!is_quantised(dtype)) return {as_dtype(rows, dtype, lane), {}};
  const ScaleShape shape = scale_shape(dtype, rows.cols);
  const Rows q = lane.workspace.take_rows(rows.rows, rows.cols, dtype);
  const Rows scales = lane.workspace.take_rows(rows.rows, shape.cols, shape.dtype);
  share_rows(lane.team, rows.rows, rows.row_bytes(), [&](int64_t first, int64_t last) {
    const int64_t count = last - first;
    quantize_rows(rows.slice(first, count), q.slice(first, count), scales.slice(first, count));
  });
  return {q, scales};
}

// The rows that have come, in a type that the experts take: converted in the workspace where they
// have travelled as another.
Tokens as_accepted(const Tokens& tokens, const Experts& experts, Lane& lane) {
  if (experts.accepts(tokens.x.dtype)) return tokens;
  Tokens converted = tokens;
  const Rows rows = lane.workspace.take_rows(tokens.x.rows, tokens.x.cols, experts.dtype());
  share_rows(lane.team, rows.rows, rows.row_bytes(), [&](int64_t first, int64_t last) {
    const int64_t count = last - first;
    decode_rows(tokens.x.slice(first, count),
                tokens.scales.cols > 0 ? tokens.scales.slice(first, count) : tokens.scales,
                rows.slice(first, count));
  });
  converted.x = rows;
  converted.scales = {};
  return converted;
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

// Where the shared experts' output goes, in F32: straight to the caller where it can.
Rows shared_rows(const LayerOutput& out, Workspace& workspace) {
  if (out.apart && out.shared.dtype == DType::kF32) return out.shared;
  return workspace.take_rows(out.routed.rows, out.routed.cols, DType::kF32);
}
// The same of the routed experts', or of the sum.
Rows routed_rows(const LayerOutput& out, Workspace& workspace) {
  if (out.routed.dtype == DType::kF32) return out.routed;
  return workspace.take_rows(out.routed.rows, out.routed.cols, DType::kF32);
}

}  // namespace

struct MoeLayer::Routed {
  // [tokens, picks_per_token] physical with the static rule, else logical
  std::span<const int32_t> ids;
  std::span<const float> weights;
  std::span<const float> identity;  // [tokens], or empty without zero experts
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

void MoeLayer::replace_cost(std::shared_ptr<const CostModel> cost) {
  check_cost(parts_.split, *parts_.replicas, cost.get());
  parts_.cost = std::move(cost);
}

int MoeLayer::picks_per_token() const {
  return picks_per_token_of(parts_);
}

void MoeLayer::check(const LayerInput& in, const LayerOutput& out,
                     const ForwardOptions& options) const {
  check_rows("x", in.x, in.x.rows, hidden());
  require(in.routed || parts_.router,
          "no gate and no router: a call must bring the ids and weights of its experts");
  if (in.routed) check_picks(in, picks_per_token(), num_experts());
  require(!out.apart || parts_.shared, "there are no shared experts whose output could be apart");
  check_outputs(in, out, hidden());
  require(options.token_ids.empty() || std::ssize(options.token_ids) == in.x.rows,
          options.token_ids.size(), " token ids for ", in.x.rows, " tokens");
  require(options.picks.empty() || !in.routed, "picks to be replayed, but the ids are ready");
  require(options.picks.empty() ||
              std::ssize(options.picks) == in.x.rows * parts_.router->config().top_k,
          options.picks.size(), " picks to be replayed for ", in.x.rows, " tokens");
  require(options.local_counts.empty() ||
              std::ssize(options.local_counts) == parts_.experts->num_local(),
          "local_counts has ", options.local_counts.size(), " entries for ",
          parts_.experts->num_local(), " slots");
}

// The most rows of the workspace that the experts of this rank write.
int64_t MoeLayer::max_answers() const {
  if (parts_.experts->overwrites_rows()) return 0;  // into Tokens::y
  if (parts_.experts->left() != Left::kNothing) return parts_.dispatcher->max_rows();
  const DispatchShape shape = parts_.dispatcher->shape();
  return SlotRanges(shape.first_slots).num_ranks() * shape.max_tokens;
}

size_t MoeLayer::workspace_bytes(int64_t max_tokens, CallForm form) const {
  const int64_t max_rows = parts_.dispatcher->max_rows();
  const auto bytes = [](int64_t rows, int64_t cols, DType dtype) {
    return Workspace::padded(shape_bytes(dtype, rows, cols));
  };
  const size_t of_tokens = bytes(max_tokens, hidden(), DType::kF32);
  size_t total = Call::promise_type::kMaxFrameBytes;
  if (!form.routed || parts_.split == SplitRule::kStatic)
    total += bytes(max_tokens, picks_per_token(), DType::kI32);
  if (!form.routed && parts_.router) {
    total += bytes(max_tokens, parts_.gate->out(), DType::kF32) +
             bytes(max_tokens, picks_per_token(), DType::kF32);
    if (parts_.router->config().num_zero_experts > 0) total += bytes(max_tokens, 1, DType::kF32);
  }
  if (const DType dtype = parts_.experts->dtype(); dtype != form.x)
    total += bytes(max_tokens, hidden(), dtype);
  const DType travels = parts_.dispatcher->shape().dtype;
  if (travels != parts_.experts->dtype()) {
    const ScaleShape scales = scale_shape(travels, hidden());
    total += bytes(max_tokens, hidden(), travels) + bytes(max_tokens, scales.cols, scales.dtype);
  }
  if (!parts_.experts->accepts(travels))
    total += bytes(max_rows, hidden(), parts_.experts->dtype());
  if (form.out != DType::kF32) total += of_tokens;
  if (parts_.shared) {
    total += parts_.shared->workspace_bytes(max_tokens);
    if (!form.apart || form.out != DType::kF32) total += of_tokens;
  }
  return total + parts_.dispatcher->workspace_bytes() +
         bytes(max_answers(), hidden(), DType::kF32) +
         Workspace::padded(parts_.experts->scratch_bytes(max_rows));
}

MoeLayer::Routed MoeLayer::routed(const LayerInput& in, Lane& lane,
                                  const ForwardOptions& options) const {
  return in.routed ? take(in, lane, options) : route(in.x, lane, options);
}

MoeLayer::Routed MoeLayer::route(ConstRows x, Lane& lane, const ForwardOptions& options) const {
  const RouterConfig& config = parts_.router->config();
  const int64_t tokens = x.rows, picks = tokens * picks_per_token();
  const Rows logits = lane.workspace.take_rows(x.rows, parts_.gate->out(), DType::kF32);
  const Routing routed{lane.workspace.take<int32_t>(picks), lane.workspace.take<float>(picks),
                       lane.workspace.take<float>(config.num_zero_experts > 0 ? tokens : 0)};
  parts_.gate->run(x, logits, lane.team);
  parts_.router->route(logits,
                       {.hidden = x,
                        .token_ids = options.token_ids,
                        .picks = options.picks,
                        .capture = options.capture,
                        .layer = parts_.layer,
                        .first_token = options.first_token},
                       routed, lane.team);
  if (parts_.split == SplitRule::kStatic) to_slots(routed.ids, routed.ids);
  return {routed.ids, routed.weights, routed.identity};
}

// What the caller's router has found.
MoeLayer::Routed MoeLayer::take(const LayerInput& in, Lane& lane,
                                const ForwardOptions& options) const {
  if (options.capture != nullptr && *options.capture)
    (*options.capture)(parts_.layer, options.first_token, picks_per_token(), in.ids);
  if (parts_.split != SplitRule::kStatic) return {in.ids, in.weights, in.identity};
  const std::span<int32_t> slots = lane.workspace.take<int32_t>(in.ids.size());
  to_slots(in.ids, slots);
  return {slots, in.weights, in.identity};
}

// The static rule: this rank's replica of each expert.
void MoeLayer::to_slots(std::span<const int32_t> ids, std::span<int32_t> slots) const {
  const Table of_rank(parts_.replicas->static_slot, parts_.replicas->num_experts);
  const std::span<const int32_t> slot_of = of_rank[parts_.dispatcher->rank()];
  std::ranges::transform(ids, slots.begin(),
                         [slot_of](int32_t id) { return id < 0 ? id : slot_of[id]; });
}

Rows MoeLayer::run_experts(const Tokens& tokens, Lane& lane, const ForwardOptions& options) const {
  for (size_t slot = 0; slot < options.local_counts.size(); ++slot)
    options.local_counts[slot] += tokens.counts[slot];
  const int64_t answers =
      parts_.experts->left() == Left::kNothing ? tokens.picks.tokens() : tokens.x.rows;
  const Rows y = parts_.experts->overwrites_rows()
                     ? tokens.y
                     : lane.workspace.take_rows(answers, hidden(), DType::kF32);
  const size_t mark = lane.workspace.mark();
  const Tokens given = as_accepted(tokens, *parts_.experts, lane);
  const auto scratch = lane.workspace.take<std::byte>(parts_.experts->scratch_bytes(tokens.x.rows));
  const auto begin =
      options.expert_nanoseconds != nullptr ? SteadyClock::now() : SteadyClock::time_point();
  parts_.experts->run(given, y, scratch, lane.team);
  if (options.expert_nanoseconds != nullptr)
    *options.expert_nanoseconds += std::chrono::nanoseconds(SteadyClock::now() - begin).count();
  lane.workspace.release(mark);
  return y;
}

Call MoeLayer::forward(LayerInput in, LayerOutput out, Lane& lane, ForwardOptions options) const {
  // All that a caller can get wrong, before the first peer hears of the call: later it would cost
  // the whole group.
  check(in, out, options);
  // The frame is in the workspace already. How many rows peers will send is not known yet: there
  // must be room for most.
  const size_t left =
      lane.workspace.capacity() - lane.workspace.mark() + Call::promise_type::kMaxFrameBytes;
  const size_t needed =
      workspace_bytes(in.x.rows, {in.x.dtype, out.routed.dtype, in.routed, out.apart});
  require(left >= needed, "a call with ", in.x.rows, " tokens takes up to ", needed,
          " bytes of workspace, ", left, " are left");
  TraceSteps trace(lane.trace, parts_.layer);
  const Routed picks = routed(in, lane, options);
  trace.step("route");
  const ConstRows rows = as_dtype(in.x, parts_.experts->dtype(), lane);
  const Travelling sent = travelling(rows, parts_.dispatcher->shape().dtype, lane);
  const ExchangePtr exchange =
      parts_.dispatcher->dispatch({.x = sent.rows,
                                   .ids = picks.ids,
                                   .weights = picks.weights,
                                   .top_k = picks_per_token(),
                                   .weight_on_input = parts_.weight_on_input,
                                   .scales = sent.scales,
                                   .replicas = shared_out(parts_),
                                   .placement = parts_.replicas->fingerprint + parts_.layer},
                                  lane);
  trace.step("dispatch");

  Outputs made{.x = in.x, .identity = picks.identity, .routed = routed_rows(out, lane.workspace)};
  SharedExperts::FirstHalf half;
  if (parts_.shared) {
    made.shared = shared_rows(out, lane.workspace);
    half = parts_.shared->first(in.x, rows, lane);
    trace.step("shared experts");
  }
  const size_t mark = lane.workspace.mark();
  bool first = true, more = true;
  for (; more; first = false) {
    co_await Until{*exchange, Stage::kArrived};

    trace.resume();
    exchange->send_back(run_experts(exchange->tokens(), lane, options), parts_.experts->left());
    if (lane.trace != nullptr) {
      const int64_t received = rows_of(exchange->tokens());
      trace.step("experts", {"rows", received});
      trace.counter("expert rows", received);
    }
    if (first && parts_.shared) {
      parts_.shared->second(half, made.shared, lane);
      trace.step("shared experts");
      if (parts_.shared_in_parts) {
        exchange->add_part(made.shared, out.apart);
        if (!out.apart) made.shared = {};  // it comes with the routed sum
      }
    }
    co_await Until{*exchange, Stage::kReturned};

    trace.resume();
    exchange->finish(made.routed);
    more = exchange->more();
    if (!more) write_outputs(made, out, lane.team);
    trace.step("combine");
    co_await Until{*exchange, Stage::kDrained};
    lane.workspace.release(mark);
  }
}

}  // namespace trimtab
