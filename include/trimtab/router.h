// SPDX-License-Identifier: Apache-2.0
// A router turns logits into expert ids and weights. Scores are f32 end to end; equal scores go to
// the lower id, so that every rank, compiler and thread count picks the same experts. What differs
// between model families (scoring, groups, selection bias, renormalisation, scaling, softmax after
// top-k, zero experts, hash tables) is data in RouterConfig.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab {

// softmax over all experts; 1 / (1 + exp(-x)); sqrt(log(1 + exp(x))) (DeepSeek-V4). Infinite logits
// have the scores of the limit: in a softmax the experts at +inf share the whole weight, -inf gives
// 0, and only -inf gives equal shares; sqrt-softplus takes +inf as the largest float.
enum class Scoring { kSoftmax, kSigmoid, kSqrtSoftplus };

// How the groups of a grouped top-k are ranked: DeepSeek-V2 takes the best score of the group, V3
// (which has a selection bias) the sum of the two best. Both see the biased scores.
enum class GroupScore { kMax, kTop2Sum };

// Replaces scoring and selection. logits: [tokens, num_experts + num_zero_experts], no NaN; hidden:
// [tokens, hidden] (may be empty, as given to route()); writes ids and weights [tokens, top_k].
// num_experts is the config's. It renormalises if told to; routed_scaling_factor is multiplied in
// afterwards by the router. An id of -1 means nobody. Must be as thread-safe as route() is used.
using CustomRouting =
    std::function<void(ConstRows hidden, ConstRows logits, int top_k, bool renormalize,
                       int num_experts, std::span<int32_t> ids, std::span<float> weights)>;

struct RouterConfig {
  // Most experts, zero experts included, that a router takes: its scratch lies on the stack.
  static constexpr int kMaxExperts = 2048;

  // Logical experts. Redundant experts are a matter of placement and unknown here.
  int num_experts = 0;
  // Experts beyond num_experts that return their input (LongCat's identity experts); logits have
  // columns for them, they take part in scoring, selection and renormalisation like the others.
  int num_zero_experts = 0;
  // Shared experts that are placed and dispatched like routed ones: ids num_experts .. num_experts
  // + n - 1 are appended to every token's picks with weight 1, which is neither renormalised nor
  // scaled. The outputs have Router::picks_per_token() columns. Usually 0: shared experts run
  // beside the layer instead.
  int num_appended_experts = 0;
  int top_k = 0;
  Scoring scoring = Scoring::kSoftmax;
  // Group-limited selection: experts in num_groups equal groups, only the best top_groups stay. 1
  // and 1: no groups.
  int num_groups = 1;
  int top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  // MoGE (mixture of grouped experts, Pangu Pro MoE): each of the num_groups groups gives its best
  // top_k / num_groups experts, so that ranks which hold as many groups get as many rows, whatever
  // the tokens are. All groups stay: top_groups is num_groups.
  bool picks_in_every_group = false;
  // [num_experts + num_zero_experts] or empty: added to the score for selection only; weights stay
  // unbiased.
  std::vector<float> selection_bias;
  // Divide the picked weights by (their sum + 1e-20).
  bool renormalize = true;
  // Multiplies the weights, once, after renormalisation, on every path.
  float routed_scaling_factor = 1.0F;
  // gpt-oss: pick by raw logits, then softmax over the picks alone. They sum to 1, so renormalize
  // changes nothing.
  bool softmax_after_top_k = false;
  // Hash routing: [vocab][top_k] expert ids by token id; the scores only give the weights. Empty:
  // none. The same id twice in a row is allowed and counts twice.
  std::vector<int32_t> hash_table;
  // Profile runs only: random distinct ids per token over the logical experts (in every group,
  // where picks are in every group) instead of those picked, also where a zero expert was picked;
  // weights and identity stay as routed. The ids follow from the seed, the layer and first_token +
  // row alone. Load recorded under it is meaningless: the caller must skip it
  // (LoadRecorder::skip_step).
  bool force_balance = false;
  uint64_t force_balance_seed = 0;
  CustomRouting custom;
};

// Receives the picks of each routed layer: logical ids [tokens, top_k] of this rank's own tokens,
// as selected (before forced balance, before zero experts become -1, before appended experts,
// before placement). first_token: where they stand among the rank's tokens of this step, so that
// microbatches and slices fill one table. Called once per route(), also for 0 tokens; may be called
// from several ranks' threads.
using Capture =
    std::function<void(int layer, int64_t first_token, int top_k, std::span<const int32_t> ids)>;

// Optional inputs of route().
struct RouteInputs {
  ConstRows hidden = {};  // for a custom function
  // [tokens], for hash routing; -1 (padding) counts as token 0.
  std::span<const int32_t> token_ids = {};
  // Replay: [tokens, top_k], as a Capture got them, which are taken as picks; the weights are those
  // of this run's scores. Where picks are in every group, these must be too. For a token whose
  // picks are all -1, and where this is empty, the router picks. A custom function can't be
  // replayed.
  std::span<const int32_t> picks = {};
  const Capture* capture = nullptr;
  int layer = 0;
  int64_t first_token = 0;
};

// Outputs, written whole; the caller owns the memory.
struct Routing {
  // [tokens, picks_per_token] logical, best first; -1 where a zero expert was picked.
  std::span<int32_t> ids;
  std::span<float> weights;  // [tokens, picks_per_token]; 0 where a zero expert was picked
  // [tokens] sum of the weights of zero experts; may be empty when there are none.
  std::span<float> identity = {};
};

// Immutable. Distinct ids for each token, except those that a hash table or a custom function
// repeats.
class Router {
 public:
  // Throws InvalidArgument for impossible values and combinations, with the values.
  explicit Router(RouterConfig config);

  // logits: f32 [tokens, num_experts + num_zero_experts]. Throws InvalidArgument on wrong shapes,
  // on a NaN logit (naming token and expert), on token ids outside the hash table, on picks of
  // experts that are not there, and on ids or
  // weights of a custom function that make no sense; the outputs are then unspecified. Does not
  // allocate: scratch is on the stack (about 40 KiB). May run on several threads at the same time,
  // also on slices of one batch (each with its first_token).
  void route(ConstRows logits, const RouteInputs& inputs, Routing out) const;
  // The same with the tokens shared out over the team; a custom function still gets all at once.
  void route(ConstRows logits, const RouteInputs& inputs, Routing out, Team& team) const;

  // Columns of the outputs: top_k + num_appended_experts.
  int picks_per_token() const { return config_.top_k + config_.num_appended_experts; }
  const RouterConfig& config() const { return config_; }

 private:
  void route_with(Team* team, ConstRows logits, const RouteInputs& inputs, Routing out) const;
  std::span<const int32_t> given_picks(const RouteInputs& inputs, int64_t token) const;
  bool fits(ConstRows logits, const RouteInputs& inputs, int64_t token) const;
  [[noreturn]] void refuse(ConstRows logits, const RouteInputs& inputs, int64_t token) const;
  int64_t select(ConstRows logits, const RouteInputs& inputs, int64_t first, int64_t last,
                 std::span<int32_t> ids, std::span<float> weights) const;
  void run_custom(ConstRows logits, ConstRows hidden, std::span<int32_t> ids,
                  std::span<float> weights) const;
  void finish(const RouteInputs& inputs, Routing out, int64_t first, int64_t last) const;

  RouterConfig config_;
};

}  // namespace trimtab
