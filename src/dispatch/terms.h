// SPDX-License-Identifier: Apache-2.0
// What must be the same on all ranks of an exchange. Each rank sends its terms with its first
// message, so that a difference is an error on every rank and never a wrong sum.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "trimtab/dispatcher.h"

namespace trimtab {

// Plain values without padding: they travel as bytes.
struct Terms {
  // These belong to the dispatcher.
  uint64_t dispatcher = 0;  // a hash of its name
  uint64_t slots = 0;       // a hash of DispatchShape::first_slots
  uint64_t groups = 0;      // a hash of the hosts or levels that it is made for
  int64_t max_tokens = 0, capacity = 0, row_budget = 0;
  int32_t hidden = 0, most_picks = 0, num_experts = 0, exact_order = 0;
  int16_t dtype = 0, results = 0;
  // These belong to the request.
  int32_t top_k = 0, weight_on_input = 0;
  int32_t rule = 0;       // 0: no replicas; else 1 + SplitRule
  uint64_t replicas = 0;  // SplitTable::fingerprint, 0 without replicas
  uint64_t cost = 0;      // CostModel::fingerprint, 0 where the rule needs none
  uint64_t placement = 0;

  bool operator==(const Terms&) const = default;
};
static_assert(std::has_unique_object_representations_v<Terms>);

uint64_t hash_of(std::span<const int32_t> values);

// shape: as it was checked; the caller may set `groups` afterwards.
Terms terms_of(std::string_view dispatcher, const DispatchShape& shape);
// The terms of one call of a dispatcher with these ones.
Terms with_request(Terms terms, const Request& request);

// For terms that differ: which one is the first, with both values. rank has `mine`, other `theirs`.
[[noreturn]] void throw_difference(std::string_view dispatcher, int rank, const Terms& mine,
                                   int other, const Terms& theirs);

}  // namespace trimtab
