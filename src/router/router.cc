// SPDX-License-Identifier: Apache-2.0
#include "trimtab/router.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cat.h"
#include "router/forced_balance.h"
#include "router/router_config.h"
#include "router/scoring.h"
#include "router/top_k.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// Memory for the selection of one token at a time; uninitialised.
struct Scratch {
  float scores[RouterConfig::kMaxExperts];
  float biased[RouterConfig::kMaxExperts];
  float group_scores[RouterConfig::kMaxExperts];
  int32_t groups[RouterConfig::kMaxExperts];
  float best[RouterConfig::kMaxExperts];  // the values behind the picks so far
};

void check_no_nan(std::span<const float> logits, int64_t token, int layer) {
  bool nan = false;
  for (const float x : logits) nan |= x != x;
  if (!nan) return;
  const auto at = std::find_if(logits.begin(), logits.end(), [](float x) { return x != x; });
  throw InvalidArgument(cat("router: the logit of token ", token, " for expert ",
                            at - logits.begin(), " is NaN (layer ", layer, ")"));
}

void check_size(const char* what, size_t size, int64_t tokens, int columns) {
  if (size != cells(tokens, columns)) {
    throw InvalidArgument(
        cat("router: ", what, " has ", size, " elements, must be [", tokens, ", ", columns, "]"));
  }
}

float group_score(GroupScore kind, std::span<const float> values) {
  if (kind == GroupScore::kMax) return *std::max_element(values.begin(), values.end());
  float first = std::max(values[0], values[1]);
  float second = std::min(values[0], values[1]);
  for (const float x : values.subspan(2)) {
    second = std::max(second, std::min(first, x));
    first = std::max(first, x);
  }
  return first + second;
}

// The best groups, in ascending order.
std::span<const int32_t> pick_groups(const RouterConfig& config, std::span<const float> values,
                                     Scratch& scratch) {
  const Table<const float> of_group(values, std::ssize(values) / config.num_groups);
  const std::span<int32_t> groups(scratch.groups, config.top_groups);
  TopK best(groups, scratch.best);
  for (int32_t g = 0; g < config.num_groups; ++g) {
    best.offer(g, group_score(config.group_score, of_group[g]));
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

// The best experts by value. Experts of dropped groups are not offered at all, so no value, however
// low, lets one in.
void pick_experts(const RouterConfig& config, std::span<const float> values, Scratch& scratch,
                  std::span<int32_t> ids) {
  if (config.num_groups == 1) {
    TopK best(ids, scratch.best);
    const auto columns = static_cast<int32_t>(values.size());
    for (int32_t e = 0; e < columns; ++e) best.offer(e, values[e]);
    return;
  }
  const std::span<const int32_t> groups = pick_groups(config, values, scratch);
  const int32_t size = config.num_experts / config.num_groups;
  TopK best(ids, scratch.best);
  for (const int32_t g : groups) {
    for (int32_t e = g * size, end = e + size; e < end; ++e) best.offer(e, values[e]);
  }
}

std::span<const int32_t> hashed_picks(const RouterConfig& config, int32_t token_id, int64_t token) {
  const Table<const int32_t> picks(config.hash_table, config.top_k);
  if (token_id < -1 || token_id >= picks.rows()) {
    throw InvalidArgument(cat("router: token ", token, " has the id ", token_id,
                              ", the hash table knows 0 to ", picks.rows() - 1));
  }
  return picks[std::max(token_id, 0)];
}

void renormalize(std::span<float> weights) {
  float sum = 0.0F;
  for (const float w : weights) sum += w;
  sum += 1e-20F;
  for (float& w : weights) w /= sum;
}

// Unscaled picks of one token: ids [top_k], weights [top_k].
void select_token(const RouterConfig& config, std::span<const float> logits,
                  std::span<const int32_t> hashed, Scratch& scratch, std::span<int32_t> ids,
                  std::span<float> weights) {
  if (config.softmax_after_top_k) {
    pick_experts(config, logits, scratch, ids);
    for (size_t i = 0; i < ids.size(); ++i) weights[i] = logits[ids[i]];
    softmax(weights, weights.data());
    return;
  }
  score(config.scoring, logits, scratch.scores);
  const float* choice = scratch.scores;
  if (!config.selection_bias.empty()) {
    for (size_t e = 0; e < logits.size(); ++e)
      scratch.biased[e] = scratch.scores[e] + config.selection_bias[e];
    choice = scratch.biased;
  }
  if (hashed.empty()) {
    pick_experts(config, {choice, logits.size()}, scratch, ids);
  } else {
    std::copy(hashed.begin(), hashed.end(), ids.begin());
  }
  for (size_t i = 0; i < ids.size(); ++i) weights[i] = scratch.scores[ids[i]];
  if (config.renormalize) renormalize(weights);
}

// From [tokens, from] to [tokens, to] in place, last token first; the new columns are left to the
// caller.
template <class T>
void widen(std::span<T> data, int64_t tokens, int from, int to) {
  if (from == to) return;
  for (int64_t t = tokens - 1; t > 0; --t) {
    T* row = data.data() + t * from;
    std::copy_backward(row, row + from, data.data() + t * to + from);
  }
}

}  // namespace

Router::Router(RouterConfig config) : config_(std::move(config)) {
  check_router_config(config_);
}

void Router::route(ConstRows logits, const RouteInputs& inputs, Routing out) const {
  const int64_t tokens = logits.rows;
  const int columns = config_.num_experts + config_.num_zero_experts;
  if (logits.dtype != DType::kF32 || tokens < 0 || logits.cols != columns ||
      logits.stride < columns) {
    throw InvalidArgument(cat("router: logits are ", name(logits.dtype), " [", tokens, ", ",
                              logits.cols, "] with stride ", logits.stride,
                              ", must be F32 [tokens, ", columns, "]"));
  }
  check_size("ids", out.ids.size(), tokens, picks_per_token());
  check_size("weights", out.weights.size(), tokens, picks_per_token());
  if (config_.num_zero_experts > 0 || !out.identity.empty())
    check_size("identity", out.identity.size(), tokens, 1);
  if (!config_.hash_table.empty()) check_size("token_ids", inputs.token_ids.size(), tokens, 1);

  // Picks lie densely in front until finish() spreads them over the columns.
  const size_t picks = cells(tokens, config_.top_k);
  const std::span<int32_t> ids = out.ids.first(picks);
  const std::span<float> weights = out.weights.first(picks);
  for (int64_t t = 0; t < tokens; ++t) {
    check_no_nan({logits.row_as<float>(t), cells(columns)}, t, inputs.layer);
  }
  if (config_.custom) {
    run_custom(logits, inputs.hidden, ids, weights);
  } else {
    select(logits, inputs, ids, weights);
  }
  for (float& w : weights) w *= config_.routed_scaling_factor;
  if (inputs.capture != nullptr && *inputs.capture) {
    (*inputs.capture)(inputs.layer, inputs.first_token, config_.top_k, ids);
  }
  finish(inputs, out, tokens);
}

void Router::select(ConstRows logits, const RouteInputs& inputs, std::span<int32_t> ids,
                    std::span<float> weights) const {
  Scratch scratch;
  const Table<int32_t> ids_of(ids, config_.top_k);
  const Table<float> weights_of(weights, config_.top_k);
  for (int64_t t = 0; t < logits.rows; ++t) {
    std::span<const int32_t> hashed;
    if (!config_.hash_table.empty()) hashed = hashed_picks(config_, inputs.token_ids[t], t);
    select_token(config_, {logits.row_as<float>(t), cells(logits.cols)}, hashed, scratch, ids_of[t],
                 weights_of[t]);
  }
}

void Router::run_custom(ConstRows logits, ConstRows hidden, std::span<int32_t> ids,
                        std::span<float> weights) const {
  config_.custom(hidden, logits, config_.top_k, config_.renormalize, config_.num_experts, ids,
                 weights);
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    if (ids[i] < -1 || ids[i] >= logits.cols || !std::isfinite(weights[i])) {
      throw InvalidArgument(cat("router: the custom function gave token ", i / config_.top_k,
                                " expert ", ids[i], " of ", logits.cols, " with weight ",
                                weights[i]));
    }
    if (ids[i] == -1) weights[i] = 0.0F;
  }
}

void Router::finish(const RouteInputs& inputs, Routing out, int64_t tokens) const {
  const int k = config_.top_k;
  const int columns = picks_per_token();
  widen(out.ids, tokens, k, columns);
  widen(out.weights, tokens, k, columns);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto first = cells(t, columns);
    const std::span<int32_t> ids = out.ids.subspan(first, columns);
    const std::span<float> weights = out.weights.subspan(first, columns);
    const std::span<int32_t> routed = ids.first(k);
    float identity = 0.0F;
    for (size_t i = 0; i < routed.size(); ++i) {
      if (routed[i] < config_.num_experts) continue;
      identity += std::exchange(weights[i], 0.0F);
      routed[i] = -1;
    }
    if (!out.identity.empty()) out.identity[t] = identity;
    if (config_.force_balance) {
      pick_at_random(config_.force_balance_seed, inputs.layer, inputs.first_token + t,
                     config_.num_experts, routed);
    }
    for (int i = 0; i < config_.num_appended_experts; ++i) {
      ids[k + i] = config_.num_experts + i;
      weights[k + i] = 1.0F;
    }
  }
}

}  // namespace trimtab
