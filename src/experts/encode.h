// SPDX-License-Identifier: Apache-2.0
// One row of a weight matrix in a stored format, before it becomes a column of a panel.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/weights.h"

namespace trimtab {

// Encodes rows of one matrix, or copies them where the source is quantised the same way, so that
// nothing is quantised twice.
class RowEncoder {
 public:
  // The source must outlive it, and has been checked. order: empty, or columns_by_block() of a
  // source that is copied: the order of the inputs in what is encoded.
  RowEncoder(const MatrixSource& source, WeightFormat format, const Storage& storage,
             std::vector<int32_t> order = {});

  // Has the source zero points of its own? Else zero_code() stands for 0 everywhere.
  bool has_zeros() const { return copies_ && source_.quantization.zeros != nullptr; }
  // codes: [padded_in] floats, halves, or bytes: integers as unsigned numbers, four bits in the low
  // nibble; what lies behind the last input is left alone. scales: [groups] of scale_bytes.
  // zeros: [groups], if has_zeros(). Throws InvalidArgument for weights that the format can't hold:
  // NaN, infinities.
  void encode(int64_t row, std::byte* codes, std::byte* scales, int32_t* zeros);

 private:
  void copy(int64_t row, std::byte* codes, std::byte* scales, int32_t* zeros) const;
  void quantize(int64_t row, std::byte* codes, std::byte* scales);
  void normalize(uint8_t* codes, int64_t group, int scale) const;

  const MatrixSource& source_;
  Scheme scheme_;
  Storage storage_;
  bool copies_;
  std::vector<int32_t> order_;
  std::vector<float> values_;
};

// Can weights of this format be copied from the source as they are, in the order of
// columns_by_block() if that is not empty?
bool same_quantization(const MatrixSource& source, WeightFormat format, const Storage& storage);

}  // namespace trimtab
