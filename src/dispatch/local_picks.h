// SPDX-License-Identifier: Apache-2.0
// For dispatchers that bring whole tokens with their picks: the rows of this rank's picks in expert
// order, and what the experts made of them summed per token. Picks of other ranks are skipped,
// never computed and multiplied by 0.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows.h"
#include "dispatch/permute_rows.h"
#include "dispatch/rows_and_answers.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/shape.h"
#include "trimtab/dispatcher.h"

namespace trimtab {

class LocalPicks {
 public:
  struct Memory {
    std::span<int32_t> counts;   // [local experts]
    std::span<int32_t> cursors;  // [local experts]
    RowsAndAnswers block;        // [max_rows]
    std::span<float> weights;    // [max_rows]
    std::span<int32_t> order;    // [max_rows] the rows as their answers go back
    PermuteMemory permute;
  };
  // front_bytes: of the block, where tokens may be until they are arranged.
  static Memory plan(Carver& carver, const RankShape& shape, int64_t max_rows,
                     size_t front_bytes = 0);

  // The tokens that are here, in the order in which an expert's rows stand.
  struct Source {
    ConstScaledRows rows;  // [tokens]
    // [tokens, top_k] of any rank or -1; arrange() leaves the row of each pick or -1.
    std::span<int32_t> ids;
    std::span<const float> weights;  // [tokens, top_k]
    int top_k = 0;
    bool weight_on_input = false;
    bool all_here = false;  // no pick is another rank's
  };

  LocalPicks(const RankShape& shape, const Memory& memory) : shape_(shape), m_(memory) {}

  // Throws InvalidArgument for ids that can't have been sent: they were broken on the way.
  Tokens arrange(const Source& source, Team& team);
  // parts: f32 [tokens, hidden], overwritten with the weighted sum of each token's picks here, in
  // the order of its ids; with Left::kNothing y is that sum.
  void sum(ConstRows y, Left left, Rows parts, Team& team) const;
  // The same in the memory of Tokens::x and y. Every token must have a pick here, and its first
  // pick must be one.
  Rows sum_in_place(ConstRows y, Left left, Team& team) const;
  // There too, and instead: f32 [y.rows, hidden], the weighted row of each pick here, in the order
  // of the tokens and their picks.
  Rows weigh_in_place(ConstRows y, Left left, Team& team) const;
  // Picks here of the tokens [first, last).
  int64_t rows_of(int64_t first, int64_t last) const;

 private:
  int64_t assign_rows();
  WeightedRow answer_to(int64_t pick, ConstRows y, Left left) const;

  const RankShape& shape_;
  const Memory m_;
  Source source_;
};

}  // namespace trimtab
