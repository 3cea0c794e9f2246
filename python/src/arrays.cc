// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

template <class Byte, class AnyArray>
BasicRows<Byte> rows(const AnyArray& array, const char* name) {
  if (array.ndim() != 2)
    throw InvalidArgument(cat(name, " has ", array.ndim(), " dimensions, not 2"));
  const auto count = static_cast<int64_t>(array.shape(0)),
             cols = static_cast<int64_t>(array.shape(1));
  if ((count > 0 && cols > 1 && array.stride(1) != 1) || (count > 1 && array.stride(0) < cols)) {
    throw InvalidArgument(cat(name, " has strides ", array.stride(0), " and ", array.stride(1),
                              "; rows must be contiguous"));
  }
  return {
      static_cast<Byte*>(
          static_cast<std::conditional_t<std::is_const_v<Byte>, const void, void>*>(array.data())),
      count, cols, count > 1 ? array.stride(0) : cols, dtype_of_array(array.dtype(), name)};
}

}  // namespace

DType dtype_of_array(nb::dlpack::dtype dtype, const char* name) {
  using Code = nb::dlpack::dtype_code;
  struct Known {
    Code code;
    int bits;
    DType dtype;
  };
  static constexpr Known kKnown[] = {
      {Code::Float, 32, DType::kF32}, {Code::Bfloat, 16, DType::kBF16},
      {Code::Float, 16, DType::kF16}, {Code::Int, 32, DType::kI32},
      {Code::Int, 64, DType::kI64},   {Code::Float, 64, DType::kF64}};
  for (const Known& known : kKnown) {
    if (dtype.code == static_cast<uint8_t>(known.code) && dtype.bits == known.bits &&
        dtype.lanes == 1) {
      return known.dtype;
    }
  }
  throw InvalidArgument(cat(name, " has elements of ", int{dtype.bits}, " bits, DLPack code ",
                            int{dtype.code},
                            "; known are float32, bfloat16, float16, float64, int32 and int64"));
}

ConstRows rows_of(const Array& array, const char* name) {
  return rows<const std::byte>(array, name);
}
Rows rows_of(const OutArray& array, const char* name) {
  return rows<std::byte>(array, name);
}

}  // namespace trimtab::python
