// SPDX-License-Identifier: Apache-2.0
// A DispatchShape that has been checked, seen from one rank, and the checks of what callers bring
// to an exchange.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/quantize_rows.h"
#include "dispatch/terms.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

struct RankShape {
  // Throws InvalidArgument.
  RankShape(std::string_view dispatcher, const DispatchShape& shape, int rank);

  std::string_view dispatcher_name;  // a literal, which outlives the shape
  int rank = 0;
  int ranks = 0;
  int64_t max_tokens = 0;
  int hidden = 0;
  int top_k = 0;
  DType dtype = DType::kF32, results = DType::kF32;
  std::vector<int32_t> first_slots;  // [ranks + 1]
  int64_t capacity = 0;
  bool exact_order = false;
  int num_experts = 0;
  int64_t row_budget = 0;

  std::vector<int32_t> ranks_of_slots;  // [slots]
  Terms terms;                          // without those of a request

  DispatchShape shape() const {
    return {max_tokens, hidden,      top_k,       dtype,      first_slots,
            capacity,   exact_order, num_experts, row_budget, results};
  }
  ScaleShape scales() const { return scale_shape(dtype, hidden); }
  int num_slots() const { return first_slots.back(); }
  int first_slot() const { return first_slots[rank]; }
  int num_slots_of(int r) const { return first_slots[r + 1] - first_slots[r]; }
  int num_local() const { return num_slots_of(rank); }
  int rank_of_slot(int32_t slot) const { return ranks_of_slots[slot]; }
  // Tokens and picks of all ranks together.
  int64_t all_tokens() const { return ranks * max_tokens; }
  int64_t all_picks() const { return all_tokens() * top_k; }
  // May a batch bring a rank more rows than its memory holds? The same on every rank.
  bool bounded() const { return 0 < row_budget && row_budget < all_picks(); }
  // Rows that this rank's experts can get at once: every pick of every rank, or the budget.
  int64_t max_rows() const { return num_local() == 0 ? 0 : bounded() ? row_budget : all_picks(); }

  // Throw InvalidArgument with the values.
  void check(const Request& request, const Lane& lane) const;
  void check_answer(ConstRows y, Left left, const Tokens& tokens) const;
  // x: of the request, which is still read, by peers too.
  void check_out(Rows out, ConstRows x) const;

 private:
  void check_rows(const Request& request) const;
  void check_replicas(const Request& request) const;
  void check_ids(const Request& request) const;
};

}  // namespace trimtab
