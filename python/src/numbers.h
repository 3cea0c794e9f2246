// SPDX-License-Identifier: Apache-2.0
// Arrays between Python and C++: what comes in is anything that DLPack, the buffer protocol or
// numpy.asarray makes an array of; what goes out are read-only numpy views of C++ memory, or arrays
// that own theirs. Nothing is copied but what C++ keeps.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace trimtab::python {

// Lists and other sequences go through numpy.asarray; those that it can't make an array of (a
// tensor on a GPU) raise what it raises.
nb::ndarray<nb::ro, nb::device::cpu> as_array(nb::handle object);

struct WholeNumbers {
  std::vector<size_t> shape;
  std::vector<int64_t> values;  // C order
};
// A copy as int64. Throws InvalidArgument, naming `what` and the place, for other dtypes than
// integers and floats, for numbers that are not whole, and for those outside [least, most].
WholeNumbers whole_numbers(nb::handle object, const std::string& what, int64_t least, int64_t most);
// The same of int32.
std::vector<int32_t> small_numbers(nb::handle object, const std::string& what);

// A view of memory that `owner` (a Python object) keeps alive.
template <class T>
nb::object view(const T* data, std::initializer_list<size_t> shape, nb::handle owner,
                std::initializer_list<int64_t> strides = {}) {
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.begin(), owner,
                                                  strides.size() == 0 ? nullptr : strides.begin()),
                  nb::rv_policy::reference);
}

// An array that takes the vector's memory.
template <class T>
nb::object array_of(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.begin(), owner),
                  nb::rv_policy::reference);
}

}  // namespace trimtab::python
