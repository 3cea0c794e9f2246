// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "experts/product_pipeline.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {

Linear::Linear(const MatrixSource& weight, const VectorSource& bias, WeightFormat format,
               const GemmKernels* kernels, BufferArena* arena, Team* team) {
  BufferArena own(0);
  packed_ = pack_linear("the weight", weight, bias, 0, format, kernels,
                        arena == nullptr ? own : *arena, team);
}

Linear::Linear(PackedWeights packed) : packed_(std::move(packed)) {
  if (packed_.kernels == nullptr || packed_.gated || !parts_fit(packed_)) {
    throw InvalidArgument(cat("linear: weights of ", packed_.bytes(), " bytes for ", packed_.in,
                              " -> ", packed_.out, " in ", name(packed_.format)));
  }
}

// Without scratch rows can't be packed, but rows that can't be read in place are converted by
// whoever needs them.
void Linear::run(ConstRows x, Rows y, Team& team) const {
  check_product(packed_, x, y, DType::kF32, "linear");
  const Scheme scheme = packed_.format.scheme;
  if (scheme != Scheme::kF32 && scheme != Scheme::kBF16 && scheme != Scheme::kF16)
    throw InvalidArgument(cat("linear: ", name(packed_.format), " weights need scratch"));
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

size_t Linear::scratch_bytes(int64_t m) const {
  return Operand::bytes(packed_, m, DType::kF32);  // which take most
}

void Linear::run(ConstRows x, Rows y, std::span<std::byte> scratch, Team& team) const {
  check_product(packed_, x, y, DType::kF32, "linear");
  check_scratch("linear", scratch_bytes(x.rows), x, y, scratch);
  if (x.rows == 0) return;
  Carver carver(scratch.data());
  const Operand operand(packed_, {x}, carver);
  team.reserve_scratch(std::max(operand.prepare_scratch(), unpack_scratch(packed_)));
  const int64_t tiles = operand.tiles(x.rows), work = x.rows * in() * out();
  for_each_item(team, tiles, work, [&](int64_t tile, int member) {
    const int64_t first = tile_first(x.rows, tiles, tile);
    operand.prepare(packed_, first, tile_first(x.rows, tiles, tile + 1) - first,
                    operand.packed(x.rows), team.scratch(member));
  });
  PanelTask task = {};
  operand.fill(task, 0, x.rows);
  const int64_t panels = num_panels(packed_);
  const int64_t in_a_row = panels_of_item(panels, x.rows, team.size());
  const int64_t items = (panels + in_a_row - 1) / in_a_row;
  for_each_item(team, items, work, [&](int64_t item, int member) {
    const int64_t first = item * in_a_row;
    multiply_panels(packed_, operand.product(),
                    {first, std::min(in_a_row, panels - first), first + team.size() * in_a_row},
                    task, y, {}, team.scratch(member));
  });
}

}  // namespace trimtab
