// SPDX-License-Identifier: Apache-2.0
#include "trimtab/router.h"

#include <algorithm>
#include <atomic>
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

bool has_nan(std::span<const float> logits) {
  bool nan = false;
  for (const float x : logits) nan |= x != x;
  return nan;
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

// The best of each group, then all of them best first.
void pick_in_every_group(const RouterConfig& config, std::span<const float> values,
                         Scratch& scratch, std::span<int32_t> ids) {
  const int32_t size = config.num_experts / config.num_groups;
  const int32_t each = config.top_k / config.num_groups;
  for (int32_t g = 0; g < config.num_groups; ++g) {
    TopK best(ids.subspan(cells(g, each), static_cast<size_t>(each)), scratch.best);
    for (int32_t e = g * size, end = e + size; e < end; ++e) best.offer(e, values[e]);
  }
  std::ranges::sort(ids, [values](int32_t a, int32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
}

bool are_in_every_group(const RouterConfig& config, std::span<const int32_t> ids) {
  const int32_t size = config.num_experts / config.num_groups;
  for (int32_t g = 0; g < config.num_groups; ++g) {
    const auto of_group = std::ranges::count_if(ids, [=](int32_t id) { return id / size == g; });
    if (of_group != config.top_k / config.num_groups) return false;
  }
  return true;
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
  if (config.picks_in_every_group) return pick_in_every_group(config, values, scratch, ids);
  const std::span<const int32_t> groups = pick_groups(config, values, scratch);
  const int32_t size = config.num_experts / config.num_groups;
  TopK best(ids, scratch.best);
  for (const int32_t g : groups) {
    for (int32_t e = g * size, end = e + size; e < end; ++e) best.offer(e, values[e]);
  }
}

void renormalize(std::span<float> weights) {
  float sum = 0.0F;
  for (const float w : weights) sum += w;
  sum += 1e-20F;
  for (float& w : weights) w /= sum;
}

// Unscaled picks of one token: ids [top_k], weights [top_k]. given: ids that are not to be chosen,
// or empty.
void select_token(const RouterConfig& config, std::span<const float> logits,
                  std::span<const int32_t> given, Scratch& scratch, std::span<int32_t> ids,
                  std::span<float> weights) {
  std::ranges::copy(given, ids.begin());
  if (config.softmax_after_top_k) {
    if (given.empty()) pick_experts(config, logits, scratch, ids);
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
  if (given.empty()) pick_experts(config, {choice, logits.size()}, scratch, ids);
  for (size_t i = 0; i < ids.size(); ++i) weights[i] = scratch.scores[ids[i]];
  if (config.renormalize) renormalize(weights);
}

// Random picks in the places of a token's.
void force_balance(const RouterConfig& config, int layer, int64_t token, std::span<int32_t> ids) {
  const uint64_t seed = config.force_balance_seed;
  if (!config.picks_in_every_group)
    return pick_at_random(seed, layer, token, config.num_experts, ids);
  const int32_t size = config.num_experts / config.num_groups;
  const size_t each = ids.size() / static_cast<size_t>(config.num_groups);
  for (int32_t g = 0; g < config.num_groups; ++g) {
    const std::span<int32_t> of_group = ids.subspan(static_cast<size_t>(g) * each, each);
    pick_at_random(seed ^ (static_cast<uint64_t>(g) << 32), layer, token, size, of_group);
    for (int32_t& id : of_group) id += g * size;
  }
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

// Calls body(first, last) for consecutive pieces of [0, tokens), on the team if there is one. The
// work of a token grows with its number of values.
template <class Body>
void share_tokens(Team* team, int64_t tokens, int64_t values, const Body& body) {
  constexpr int64_t kValuesOfTask = 8192;  // about 40 us
  const int64_t piece = std::max<int64_t>(1, kValuesOfTask / values);
  if (team == nullptr || team->size() == 1 || tokens <= piece) return body(int64_t{0}, tokens);
  team->for_each((tokens + piece - 1) / piece,
                 [&](int64_t i) { body(i * piece, std::min(tokens, (i + 1) * piece)); });
}

std::span<const float> logits_of(ConstRows logits, int64_t token) {
  return {logits.row_as<float>(token), cells(logits.cols)};
}

}  // namespace

Router::Router(RouterConfig config) : config_(std::move(config)) {
  check_router_config(config_);
}

void Router::route(ConstRows logits, const RouteInputs& inputs, Routing out) const {
  route_with(nullptr, logits, inputs, out);
}

void Router::route(ConstRows logits, const RouteInputs& inputs, Routing out, Team& team) const {
  route_with(&team, logits, inputs, out);
}

void Router::route_with(Team* team, ConstRows logits, const RouteInputs& inputs,
                        Routing out) const {
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
  if (!inputs.picks.empty()) check_size("picks", inputs.picks.size(), tokens, config_.top_k);
  if (!inputs.picks.empty() && config_.custom)
    throw InvalidArgument("router: picks of a custom function can't be replayed");

  // Picks lie densely in front until finish() spreads them over the columns.
  const size_t picks = cells(tokens, config_.top_k);
  const std::span<int32_t> ids = out.ids.first(picks);
  const std::span<float> weights = out.weights.first(picks);
  // Whichever thread comes to it first, the first token that does not fit is the one named.
  std::atomic<int64_t> first_bad = tokens;
  share_tokens(team, tokens, columns, [&](int64_t first, int64_t last) {
    const int64_t end = select(logits, inputs, first, last, ids, weights);
    int64_t bad = first_bad;
    while (end < last && end < bad && !first_bad.compare_exchange_weak(bad, end)) {
    }
  });
  if (first_bad < tokens) refuse(logits, inputs, first_bad);
  if (config_.custom) run_custom(logits, inputs.hidden, ids, weights);
  if (inputs.capture != nullptr && *inputs.capture) {
    (*inputs.capture)(inputs.layer, inputs.first_token, config_.top_k, ids);
  }
  widen(out.ids, tokens, config_.top_k, picks_per_token());
  widen(out.weights, tokens, config_.top_k, picks_per_token());
  share_tokens(team, tokens, picks_per_token(),
               [&](int64_t first, int64_t last) { finish(inputs, out, first, last); });
}

// Of a replay or the hash table; empty: the router is to choose.
std::span<const int32_t> Router::given_picks(const RouteInputs& inputs, int64_t token) const {
  if (!inputs.picks.empty()) {
    const std::span<const int32_t> replayed = Table(inputs.picks, config_.top_k)[token];
    const bool none = std::ranges::all_of(replayed, [](int32_t id) { return id == -1; });
    return none ? std::span<const int32_t>{} : replayed;
  }
  if (config_.hash_table.empty()) return {};
  const Table<const int32_t> hashed(config_.hash_table, config_.top_k);
  return hashed[std::max(inputs.token_ids[token], 0)];
}

bool Router::fits(ConstRows logits, const RouteInputs& inputs, int64_t token) const {
  if (has_nan(logits_of(logits, token))) return false;
  if (!inputs.picks.empty()) {
    const std::span<const int32_t> given = given_picks(inputs, token);
    return std::ranges::all_of(given, [&](int32_t id) { return id >= 0 && id < logits.cols; }) &&
           (given.empty() || !config_.picks_in_every_group || are_in_every_group(config_, given));
  }
  if (config_.hash_table.empty()) return true;
  const int32_t id = inputs.token_ids[token];
  return id >= -1 && id < std::ssize(config_.hash_table) / config_.top_k;
}

void Router::refuse(ConstRows logits, const RouteInputs& inputs, int64_t token) const {
  const std::span<const float> row = logits_of(logits, token);
  const auto nan = std::find_if(row.begin(), row.end(), [](float x) { return x != x; });
  if (nan != row.end()) {
    throw InvalidArgument(cat("router: the logit of token ", token, " for expert ",
                              nan - row.begin(), " is NaN (layer ", inputs.layer, ")"));
  }
  if (!inputs.picks.empty()) {
    throw InvalidArgument(cat("router: the picks to be replayed for token ", token,
                              " are not all in [0, ", logits.cols, ")",
                              config_.picks_in_every_group ? ", as many in every group" : "",
                              " (layer ", inputs.layer, ")"));
  }
  throw InvalidArgument(cat("router: token ", token, " has the id ", inputs.token_ids[token],
                            ", the hash table knows 0 to ",
                            std::ssize(config_.hash_table) / config_.top_k - 1));
}

// The tokens from first on, up to the first that does not fit, which it returns, or last.
int64_t Router::select(ConstRows logits, const RouteInputs& inputs, int64_t first, int64_t last,
                       std::span<int32_t> ids, std::span<float> weights) const {
  Scratch scratch;
  const Table<int32_t> ids_of(ids, config_.top_k);
  const Table<float> weights_of(weights, config_.top_k);
  for (int64_t t = first; t < last; ++t) {
    if (!fits(logits, inputs, t)) return t;
    if (config_.custom) continue;
    select_token(config_, logits_of(logits, t), given_picks(inputs, t), scratch, ids_of[t],
                 weights_of[t]);
  }
  return last;
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

void Router::finish(const RouteInputs& inputs, Routing out, int64_t first, int64_t last) const {
  const int k = config_.top_k;
  const Table<int32_t> ids_of(out.ids, picks_per_token());
  const Table<float> weights_of(out.weights, picks_per_token());
  for (int64_t t = first; t < last; ++t) {
    const std::span<int32_t> ids = ids_of[t], routed = ids.first(k);
    const std::span<float> weights = weights_of[t];
    float identity = 0.0F;
    for (size_t i = 0; i < routed.size(); ++i) {
      weights[i] *= config_.routed_scaling_factor;
      if (routed[i] < config_.num_experts) continue;
      identity += std::exchange(weights[i], 0.0F);
      routed[i] = -1;
    }
    if (!out.identity.empty()) out.identity[t] = identity;
    if (config_.force_balance) {
      force_balance(config_, inputs.layer, inputs.first_token + t, routed);
    }
    for (int i = 0; i < config_.num_appended_experts; ++i) {
      ids[k + i] = config_.num_experts + i;
      weights[k + i] = 1.0F;
    }
  }
}

}  // namespace trimtab
