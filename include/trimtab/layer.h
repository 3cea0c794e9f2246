// SPDX-License-Identifier: Apache-2.0
// The MoE layer of one rank: router -> dispatch -> experts -> combine, with shared experts between.
// An engine that has routed already starts at the dispatch. One call is a coroutine that pauses
// exactly where it would wait for peers, so one body serves synchronous calls, shared experts under
// the transfers, and two microbatches that hide each other's waits.
#pragma once

#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "trimtab/dispatcher.h"
#include "trimtab/experts.h"
#include "trimtab/router.h"
#include "trimtab/split.h"

namespace trimtab {

// A forward pass in flight. Move-only. Started lazily: nothing runs before the first run() or
// overlap(). Its frame lives in the lane's workspace from forward() to the end of the Call: no
// heap, and one call at a time per lane.
class Call {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Call(Call&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Call& operator=(Call&&) = delete;
  ~Call();

  // All functions throw InvalidArgument for a call that was moved from.
  bool finished() const;
  // Goes on for as long as nothing has to be waited for. Returns true when the call has finished.
  // Rethrows its exception.
  bool advance();
  // Goes on as advance() does, but blocks at the first wait. The call must not have finished().
  void block();
  // The lane that it runs in.
  const Lane& lane() const;

 private:
  friend struct promise_type;
  explicit Call(Handle handle) : handle_(handle) {}
  Handle handle_;
};

// Runs a call to its end. Throws InvalidArgument for a call that was moved from.
void run(Call call);
// Runs two microbatches of the same layer, each in its own lane, so that each one's waits are
// filled with the other's work. Every rank must pass them in the same order. Blocks only in the
// first unfinished call: with the same order on every rank no cycle of waits can form. Throws
// InvalidArgument, before anything runs, when the lanes share a Communicator or a Workspace.
void overlap(Call first, Call second);
// Two microbatches through several layers: make(l, b) begins the call of microbatch b, 0 or 1, in
// layer l, when that of layer l - 1 has finished; what a model computes between its layers belongs
// there. The wait at the end of a layer is filled with the other microbatch too. As above, every
// rank must make the same calls, and calls of both microbatches in lanes that share a Communicator
// or a Workspace are an InvalidArgument; here the first microbatch may have run by then.
void overlap(int64_t layers, const std::function<Call(int64_t layer, int microbatch)>& make);

// Experts that every token passes, on its own rank. With a gate (Qwen2-MoE) the output is scaled by
// sigmoid(x . gate). In two halves, so that the first runs under the dispatch and the second under
// the combine. Immutable.
class SharedExperts {
 public:
  // gate: null, or hidden -> 1. Throws InvalidArgument when it does not fit the mlp.
  explicit SharedExperts(std::shared_ptr<const Mlp> mlp,
                         std::shared_ptr<const Linear> gate = nullptr);

  int64_t hidden() const { return mlp_->hidden(); }
  // The bytes of workspace that both halves of one call take together.
  size_t workspace_bytes(int64_t tokens) const;

  // The state that the first half leaves for the second; its memory is in the lane's workspace.
  struct FirstHalf {
    Rows act;    // [tokens, intermediate]
    Rows scale;  // f32 [tokens, 1] sigmoid of the gate; no rows without a gate
    std::span<std::byte> scratch;
  };
  // x: F32 or BF16 [tokens, hidden], which the gate reads; x_experts: the same rows in the experts'
  // dtype.
  FirstHalf first(ConstRows x, ConstRows x_experts, Lane& lane) const;
  // y: f32 [tokens, hidden], overwritten with the shared experts' output.
  void second(const FirstHalf& half, Rows y, Lane& lane) const;

 private:
  std::shared_ptr<const Mlp> mlp_;
  std::shared_ptr<const Linear> gate_;
};

// The tokens of a call: rows that the layer's own gate and router are to see, or rows whose experts
// somebody has chosen already.
struct LayerInput {
  LayerInput(ConstRows rows) : x(rows) {}  // NOLINT: implicit
  LayerInput(Rows rows) : x(rows) {}       // NOLINT: implicit
  LayerInput(ConstRows rows, std::span<const int32_t> expert_ids,
             std::span<const float> router_weights, std::span<const float> identity_weights = {})
      : x(rows),
        routed(true),
        ids(expert_ids),
        weights(router_weights),
        identity(identity_weights) {}
  // The tokens [first, first + count).
  LayerInput slice(int64_t first, int64_t count) const;

  ConstRows x;          // F32 or BF16 [tokens, hidden]
  bool routed = false;  // have the experts been chosen?
  // [tokens, MoeLayer::picks_per_token()] logical experts; -1: nobody.
  std::span<const int32_t> ids = {};
  std::span<const float> weights = {};  // of the shape of ids
  std::span<const float> identity =
      {};  // [tokens] or empty: the weights of zero experts, as Routing
};

// Where the result of a call goes: the sum of the routed and the shared experts' outputs in one
// place, or each in its own. Sums are in F32 and are rounded once, at the end.
struct LayerOutput {
  LayerOutput(Rows sum) : routed(sum) {}  // NOLINT: implicit
  LayerOutput(Rows of_routed, Rows of_shared) : routed(of_routed), shared(of_shared), apart(true) {}
  LayerOutput slice(int64_t first, int64_t count) const;

  Rows routed;         // F32 or BF16 [tokens, hidden], overwritten
  Rows shared = {};    // the same type and shape, where the two are apart
  bool apart = false;  // for layers with shared experts only
};

// The properties of a call that its memory depends on.
struct CallForm {
  DType x = DType::kF32, out = DType::kF32;
  bool routed = false, apart = false;  // as in LayerInput and LayerOutput
};

struct ForwardOptions {
  // Receives the routed ids, also those that are ready; first_token is where x stands among the
  // rank's tokens of this step.
  const Capture* capture = nullptr;
  int64_t first_token = 0;
  // [tokens], for hash routing.
  std::span<const int32_t> token_ids = {};
  // [tokens, top_k of the router] or empty: picks of another run, which are to be replayed (see
  // RouteInputs).
  std::span<const int32_t> picks = {};
  // [slots of this rank] or empty: the rows that each slot received are added here before the call
  // finishes, so the microbatches of a step may share it. A LoadRecorder's counts(layer).
  std::span<int32_t> local_counts = {};
  // Null, or where the time is added that this rank's experts take: a LoadRecorder's
  // expert_nanoseconds().
  int64_t* expert_nanoseconds = nullptr;
};

class MoeLayer {
 public:
  struct Parts {
    // Both, or neither: then every call brings the ids of its experts.
    std::shared_ptr<const Linear> gate;  // hidden -> num_experts + num_zero_experts logits; f32
    std::shared_ptr<const Router> router;
    // The slots of the num_experts + num_appended_experts logical experts.
    std::shared_ptr<const SplitTable> replicas;
    // The rule that says which replica a pick goes to. kStatic: this rank's fixed one. The other
    // rules choose batch by batch from the picks of all ranks and need a dispatcher that shares
    // out. Outputs have the same bits under all of them if the dispatcher adds in the order of ids.
    SplitRule split = SplitRule::kStatic;
    // What an expert costs, for the rule kTime; the same on every rank.
    std::shared_ptr<const CostModel> cost;
    // It moves rows of any dtype: they are rounded or quantised to it before they travel. If the
    // experts accept it, the output is the same as if they did that. If not, the rows are converted
    // back where they arrive, which rows in Format::kStandard alone can be.
    std::shared_ptr<const Dispatcher> dispatcher;
    std::shared_ptr<const Experts> experts;
    std::optional<SharedExperts> shared;
    // The shared experts are this rank's part of them (part_of()), and the dispatcher sums parts:
    // it sums them over the ranks, together with the routed output or apart from it as a call asks.
    bool shared_in_parts = false;
    int layer = 0;  // for the capture
    // The router's weight multiplies the experts' input instead of their output; one pick a token
    // only.
    bool weight_on_input = false;
  };

  // Throws InvalidArgument when the parts do not fit: formats, sizes, weights that the dispatcher
  // does not carry.
  explicit MoeLayer(Parts parts);

  // Other weights in this rank's slots and, on every rank, the replicas that go with them. Between
  // calls; every rank must do it between the same two. Throws InvalidArgument when they do not fit
  // the other parts, and has changed nothing then.
  void replace(std::shared_ptr<const Experts> experts, std::shared_ptr<const SplitTable> replicas);
  // Another cost model for the rule kTime: ranks have other speeds than was thought. As replace().
  void replace_cost(std::shared_ptr<const CostModel> cost);

  // The memory of in and out, the layer, the lane and what the options point to must outlive the
  // Call, whose end gives the lane its memory back. Outputs overlap neither each other nor an
  // input. Every rank of the lane's group must make the same calls; their forms may differ. Throws
  // InvalidArgument when another call is in flight in the lane. run() throws InvalidArgument for
  // what does not fit, such as rows to be routed by a layer that has no router, before a peer hears
  // of the call, and where ranks differ (see Request), and CommError when a peer fails.
  Call forward(LayerInput in, LayerOutput out, Lane& lane, ForwardOptions options = {}) const;
  // Throws InvalidArgument for a call that forward() would refuse, whatever the lane.
  void check(const LayerInput& in, const LayerOutput& out, const ForwardOptions& options) const;
  // Reserve for one call of this form with at most max_tokens tokens.
  size_t workspace_bytes(int64_t max_tokens, CallForm form = {}) const;

  // A lane needs its make_groups().
  const Dispatcher& dispatcher() const { return *parts_.dispatcher; }
  int64_t hidden() const { return parts_.experts->hidden(); }
  // Columns of ids and weights: the router's, or without one the top_k of the dispatcher.
  int picks_per_token() const;
  // Logical experts that have slots.
  int num_experts() const { return parts_.replicas->num_experts; }

 private:
  struct Routed;

  Routed routed(const LayerInput& in, Lane& lane, const ForwardOptions& options) const;
  Routed route(ConstRows x, Lane& lane, const ForwardOptions& options) const;
  Routed take(const LayerInput& in, Lane& lane, const ForwardOptions& options) const;
  void to_slots(std::span<const int32_t> ids, std::span<int32_t> slots) const;
  int64_t max_answers() const;
  Rows run_experts(const Tokens& tokens, Lane& lane, const ForwardOptions& options) const;

  Parts parts_;
};

}  // namespace trimtab
