// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/weight_dtype.h"

#include <array>
#include <cassert>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

// The source's elements themselves.
template <class T>
void same_row(const MatrixSource& source, int64_t row, std::span<double> out) {
  assert(source.dtype == dtype_of<T>() && source.col_stride == 1);
  const T* from = reinterpret_cast<const T*>(source.data) + row * source.row_stride;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(to_float(from[i]));
}

constexpr std::array<WeightDType, 2> kDTypes = {
    {{"f32", DType::kF32, DType::kF32, DType::kF32, DotKind::kF32, 32, 0, 0, same_row<float>},
     {"bf16", DType::kBF16, DType::kBF16, DType::kBF16, DotKind::kBF16, 16, 0x1p-8, 0, same_row<bf16_t>}}};

}  // namespace

std::span<const WeightDType> weight_dtypes() {
  return kDTypes;
}

const WeightDType& find_weight_dtype(std::string_view name) {
  std::string names;
  for (const WeightDType& dtype : kDTypes) {
    if (dtype.name == name) return dtype;
    names += cat(names.empty() ? "" : ", ", dtype.name);
  }
  throw InvalidArgument(cat(name, " is not a dtype of weights: ", names));
}

}  // namespace trimtab::bench
