// SPDX-License-Identifier: Apache-2.0
// Rows of x in the form that a product reads: rounded or quantised as its weights want it, and
// packed into tiles where there are more than a few.
#pragma once

#include <cstdint>

#include "base/carver.h"
#include "experts/weights.h"

namespace trimtab {

// Rows as the caller has them.
struct RowSource {
  ConstRows x;
  ConstRows scales = {};  // the scales of x, if it comes quantised (quantize_rows.h)
  RowPointers at = {};    // where they are, if x and scales do not say

  const std::byte* row(int64_t i) const { return at.x.empty() ? x.row(i) : at.x[i]; }
  const std::byte* row_scales(int64_t i) const {
    return at.scales.empty() ? scales.row(i) : at.scales[i];
  }
};

// The prepared rows of all parts of a product: part p, tile t stands at the row at which it stands
// in x.
class Operand {
 public:
  enum Packing { kPacked, kUnpacked };

  // Prepares rows of x.dtype for these weights. Memory comes from the carver.
  Operand(const PackedWeights& weights, const RowSource& source, Carver& carver,
          Packing packing = kPacked);
  // The memory that `rows` rows of this type take.
  static size_t bytes(const PackedWeights& weights, int64_t rows, DType x);

  Product product() const { return product_; }
  // Are so many rows packed? Else they are read row by row.
  bool packed(int64_t rows) const { return packs_ && rows > kMaxUnpackedRows; }
  // Do rows that are not packed need prepare()?
  bool in_place() const { return in_place_; }
  int64_t tiles(int64_t rows) const;
  // Rows [first, first + count) are one tile of a part, packed or not, that meets these weights: of
  // the constructor's shape and format, and with a row_scale and an order if those have them.
  // scratch: prepare_scratch() bytes.
  void prepare(const PackedWeights& weights, int64_t first, int64_t count, bool packed,
               std::byte* scratch) const;
  size_t prepare_scratch() const;
  // Puts rows [first, first + count), prepared or in place, into a task.
  void fill(PanelTask& task, int64_t first, int64_t count) const;

 private:
  // Row i of the source to `row`.
  // row_scale: null, or the scale of all rows.
  void quantize_int8(int64_t i, const float* row_scale, std::byte* row) const;
  void round_to_e4m3(int64_t i, float row_scale, std::byte* row) const;
  void round_to_mx(int64_t i, std::byte* row, std::byte* scratch) const;
  void convert(int64_t i, std::byte* row) const;
  // Elements of bf16: row k is element order[k] of the source.
  void gather(int64_t i, const int32_t* order, std::byte* row, std::byte* scratch) const;

  const GemmKernels* kernels_;
  RowSource source_;
  Storage storage_;
  Product product_;
  int max_rows_;
  bool packs_, in_place_;
  size_t row_bytes_;
  Rows codes_;       // bytes [rows, row_bytes_]: rows that are prepared, packed or not
  Rows row_scales_;  // f32 [rows, 1]; kInt8 and kInt4 only
  int32_t* sums_ = nullptr;
};

}  // namespace trimtab
