// SPDX-License-Identifier: Apache-2.0
// Arrays of any framework as Trimtab's views, without copying: what Python hands in by DLPack or
// the buffer protocol.
#pragma once

#include <nanobind/ndarray.h>

#include "trimtab/tensor.h"

namespace trimtab::python {

namespace nb = nanobind;

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using OutArray = nb::ndarray<nb::device::cpu>;

// Throws InvalidArgument with the array's name for types that Trimtab does not know.
DType dtype_of_array(nb::dlpack::dtype dtype, const char* name);

// An array of two dimensions whose rows are contiguous. Throws InvalidArgument.
ConstRows rows_of(const Array& array, const char* name);
Rows rows_of(const OutArray& array, const char* name);

}  // namespace trimtab::python
