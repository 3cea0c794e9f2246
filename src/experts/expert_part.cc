// SPDX-License-Identifier: Apache-2.0
#include "trimtab/expert_part.h"

#include <numeric>

#include "base/cat.h"
#include "experts/source_slice.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The inputs of down that share a scale in this format.
int64_t inputs_of_a_scale(WeightFormat format) {
  switch (format.scheme) {
    case Scheme::kMXFP8:
    case Scheme::kMXFP4:
      return 32;
    case Scheme::kFP8:
      return 128;
    default:
      return format.has_groups() && format.group > 0 ? format.group : 1;
  }
}

// `count` inputs or outputs in blocks of `block`: what a cut must be a multiple of. One block is
// shared by all parts.
int64_t unit_of_blocks(int64_t block, int64_t count) {
  return block >= count ? 1 : block;
}

// Elements that share a byte can't be cut.
int64_t elements_of_a_byte(DType dtype) {
  return bits(dtype) < 8 ? 8 / bits(dtype) : 1;
}

int64_t unit_of_rows(const MatrixSource& m) {
  int64_t unit = m.even_rows_first ? 8 : 1;
  if (m.row_stride == 1) unit = std::lcm(unit, elements_of_a_byte(m.dtype));
  if (!m.is_quantised()) return unit;
  const Quantization& q = m.quantization;
  int64_t block = unit_of_blocks(q.block_rows, m.rows);
  if (q.zeros != nullptr && q.block_rows < m.rows) {
    block *= q.zero_rows_per_word;
    if (q.zero_row_stride == 1) block = std::lcm(block, elements_of_a_byte(m.dtype));
  }
  return std::lcm(unit, block);
}

int64_t unit_of_cols(const MatrixSource& m) {
  int64_t unit = std::lcm(m.cols_per_word, m.col_stride == 1 ? elements_of_a_byte(m.dtype) : 1);
  if (!m.is_quantised()) return unit;
  const Quantization& q = m.quantization;
  int64_t block = unit_of_blocks(q.block_cols, m.cols);
  if (q.zeros != nullptr && q.block_cols < m.cols && q.zero_col_stride == 1)
    block *= elements_of_a_byte(m.dtype);
  return std::lcm(unit, block);
}

}  // namespace

MlpSource part_of(const MlpSource& source, int part, int parts, WeightFormat format) {
  if (parts < 1 || part < 0 || part >= parts)
    throw InvalidArgument(cat("part ", part, " of ", parts, " of an expert"));
  if (parts == 1) return source;
  const int64_t size = source.down.cols;
  if (source.down.quantization.column_blocks != nullptr) {
    throw InvalidArgument(
        cat("an expert whose down matrix has its columns in another order "
            "(desc_act) can't be cut into ",
            parts, " parts; keep experts whole"));
  }
  int64_t unit = std::lcm(inputs_of_a_scale(format), unit_of_cols(source.down));
  for (const MatrixSource* m : {&source.gate, &source.up}) unit = std::lcm(unit, unit_of_rows(*m));
  if (size % parts != 0 || size / parts % unit != 0) {
    throw InvalidArgument(cat("an expert of intermediate size ", size, " can't be cut into ", parts,
                              " parts: in ", name(format), " each part must be a multiple of ",
                              unit,
                              "; take fewer tensor-parallel ranks, smaller groups or whole "
                              "experts"));
  }
  const int64_t count = size / parts, first = part * count;
  MlpSource cut = source;
  constexpr const char* kWhat = "parts of an expert";
  cut.gate = rows_of(source.gate, first, count, kWhat);
  cut.up = rows_of(source.up, first, count, kWhat);
  cut.down = cols_of(source.down, first, count, kWhat);
  cut.gate_bias = slice_of(source.gate_bias, first, count);
  cut.up_bias = slice_of(source.up_bias, first, count);
  if (part > 0) cut.down_bias = {};
  return cut;
}

}  // namespace trimtab
