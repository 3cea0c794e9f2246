// SPDX-License-Identifier: Apache-2.0
#include "dispatch/terms.h"

#include "base/cat.h"
#include "base/checksum.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

template <class Value>
void compare(std::string_view dispatcher, const char* what, int rank, const Value& mine, int other,
             const Value& theirs) {
  if (mine == theirs) return;
  throw InvalidArgument(cat(dispatcher, ": rank ", rank, " comes with ", what, " ", mine, ", rank ",
                            other, " with ", theirs, "; it must be the same on every rank"));
}

// What is compared as a hash, whose value says nothing.
void compare_hashes(std::string_view dispatcher, const char* what, int rank, uint64_t mine,
                    int other, uint64_t theirs) {
  if (mine == theirs) return;
  throw InvalidArgument(cat(dispatcher, ": rank ", rank, " and rank ", other,
                            " come with different ", what,
                            "; they must be the same on every rank"));
}

// Of a peer's message, which may hold anything.
std::string_view name_of_rule(int32_t rule) {
  if (rule == 0) return "no";
  return rule > 0 ? name(static_cast<SplitRule>(rule - 1)) : "an unknown one";
}
std::string_view name_of_dtype(int16_t dtype) {
  const bool known = 0 <= dtype && dtype <= static_cast<int16_t>(DType::kU4);
  return known ? name(static_cast<DType>(dtype)) : "an unknown type";
}

}  // namespace

uint64_t hash_of(std::span<const int32_t> values) {
  return checksum(std::as_bytes(values));
}

Terms terms_of(std::string_view dispatcher, const DispatchShape& shape) {
  return {.dispatcher = checksum(std::as_bytes(std::span(dispatcher))),
          .slots = hash_of(shape.first_slots),
          .max_tokens = shape.max_tokens,
          .capacity = shape.capacity,
          .row_budget = shape.row_budget,
          .hidden = shape.hidden,
          .most_picks = shape.top_k,
          .num_experts = shape.num_experts,
          .exact_order = shape.exact_order ? 1 : 0,
          .dtype = static_cast<int16_t>(shape.dtype),
          .results = static_cast<int16_t>(shape.results)};
}

Terms with_request(Terms terms, const Request& request) {
  terms.top_k = request.top_k;
  terms.weight_on_input = request.weight_on_input ? 1 : 0;
  if (const Replicas& replicas = request.replicas; replicas.table != nullptr) {
    terms.rule = 1 + static_cast<int32_t>(replicas.rule);
    terms.replicas = replicas.table->fingerprint;
    if (replicas.rule == SplitRule::kTime) terms.cost = replicas.cost->fingerprint();
  }
  terms.placement = request.placement;
  return terms;
}

void throw_difference(std::string_view dispatcher, int rank, const Terms& mine, int other,
                      const Terms& theirs) {
  const auto same = [&](const char* what, const auto& own, const auto& others) {
    compare(dispatcher, what, rank, own, other, others);
  };
  const auto same_hash = [&](const char* what, uint64_t own, uint64_t others) {
    compare_hashes(dispatcher, what, rank, own, other, others);
  };
  same_hash("dispatchers", mine.dispatcher, theirs.dispatcher);
  same("hidden", mine.hidden, theirs.hidden);
  same("rows of dtype", name_of_dtype(mine.dtype), name_of_dtype(theirs.dtype));
  same("results of dtype", name_of_dtype(mine.results), name_of_dtype(theirs.results));
  same("top_k", mine.top_k, theirs.top_k);
  same("weight_on_input", mine.weight_on_input, theirs.weight_on_input);
  same("a shape of top_k", mine.most_picks, theirs.most_picks);
  same("max_tokens", mine.max_tokens, theirs.max_tokens);
  same("capacity", mine.capacity, theirs.capacity);
  same("a row budget of", mine.row_budget, theirs.row_budget);
  same("exact_order", mine.exact_order, theirs.exact_order);
  same("num_experts", mine.num_experts, theirs.num_experts);
  same_hash("first_slots", mine.slots, theirs.slots);
  same_hash("hosts or levels", mine.groups, theirs.groups);
  same("split rule", name_of_rule(mine.rule), name_of_rule(theirs.rule));
  same_hash("replicas", mine.replicas, theirs.replicas);
  same_hash("cost models", mine.cost, theirs.cost);
  same_hash("placements, or in different layers", mine.placement, theirs.placement);
  throw InvalidArgument(cat(dispatcher, ": rank ", rank, " and rank ", other, " differ"));
}

}  // namespace trimtab
