// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/cat.h"
#include "experts/product_pipeline.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {

Linear::Linear(const MatrixSource& weight, const VectorSource& bias, WeightFormat format,
               const GemmKernels* kernels, BufferArena* arena) {
  if (format.scheme != Scheme::kF32 && format.scheme != Scheme::kBF16 &&
      format.scheme != Scheme::kF16) {
    throw InvalidArgument(
        cat("linear: weights are stored as f32, bf16 or f16, not ", name(format)));
  }
  BufferArena own(0);
  packed_ =
      pack_linear("the weight", weight, bias, 0, format, kernels, arena == nullptr ? own : *arena);
}

// Without scratch rows can't be packed, but rows that can't be read in place are converted by
// whoever needs them.
void Linear::run(ConstRows x, Rows y, Team& team) const {
  check_product(packed_, x, y, DType::kF32, "linear");
  if (x.rows == 0) return;
  // Rows are shared too, since a router's gate or a small head has but one or two panels.
  constexpr int64_t kRowsPerItem = 96;
  const int64_t blocks = (x.rows + kRowsPerItem - 1) / kRowsPerItem, panels = num_panels(packed_);
  const size_t operand_bytes = Operand::bytes(packed_, kRowsPerItem, x.dtype);
  Carver probe(nullptr);
  const Operand any(packed_, {x}, probe);
  if (!any.in_place()) team.reserve_scratch(operand_bytes + any.prepare_scratch());
  const auto run = [&](int64_t item, int member) {
    const int64_t first = item % blocks * kRowsPerItem;
    const int64_t rows = std::min(kRowsPerItem, x.rows - first);
    std::byte* const scratch = team.scratch(member);
    Carver carver(any.in_place() ? nullptr : scratch);
    const Operand operand(packed_, {x.slice(first, rows)}, carver, Operand::kUnpacked);
    if (!operand.in_place()) operand.prepare(packed_, 0, rows, false, scratch + operand_bytes);
    PanelTask task = {};
    operand.fill(task, 0, rows);
    multiply_panels(packed_, operand.product(), {item / blocks, 1, item / blocks + 1}, task,
                    y.slice(first, rows), {}, nullptr);
  };
  for_each_item(team, panels * blocks, x.rows * in() * out(), run);
}

}  // namespace trimtab
