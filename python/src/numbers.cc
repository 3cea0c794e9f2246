// SPDX-License-Identifier: Apache-2.0
#include "numbers.h"

#include <cmath>
#include <type_traits>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;

std::string place_of(size_t index, const std::vector<size_t>& shape) {
  std::string place;
  for (size_t dimension = shape.size(); dimension-- > 0;) {
    place = std::to_string(index % shape[dimension]) + (place.empty() ? "" : ", ") + place;
    index /= shape[dimension];
  }
  return "[" + place + "]";
}

template <class T>
struct Copy {
  const Array& array;
  const std::string& what;
  int64_t least, most;
  WholeNumbers& to;

  int64_t checked(T value) const {
    bool fits;
    if constexpr (std::is_floating_point_v<T>) {
      fits = std::trunc(value) == value &&
             static_cast<double>(value) >= static_cast<double>(least) &&
             static_cast<double>(value) <= static_cast<double>(most) &&
             static_cast<double>(value) < 0x1p63;
    } else {
      fits = std::cmp_greater_equal(value, least) && std::cmp_less_equal(value, most);
    }
    if (fits) return static_cast<int64_t>(value);
    throw InvalidArgument(cat(what, place_of(to.values.size(), to.shape), " is ", +value,
                              ", not a whole number from ", least, " to ", most));
  }
  void operator()(size_t dimension, const T* from) {
    const int64_t stride = array.stride(dimension);
    for (size_t i = 0; i < to.shape[dimension]; ++i, from += stride) {
      if (dimension + 1 == to.shape.size()) {
        to.values.push_back(checked(*from));
      } else {
        (*this)(dimension + 1, from);
      }
    }
  }
};

template <class T>
bool copy_if(const Array& array, const std::string& what, int64_t least, int64_t most,
             WholeNumbers& to) {
  if (array.dtype() != nb::dtype<T>()) return false;
  const nb::gil_scoped_release release;
  Copy<T>{array, what, least, most, to}(0, static_cast<const T*>(array.data()));
  return true;
}

}  // namespace

Array as_array(nb::handle object) {
  Array array;
  if (nb::try_cast<Array>(object, array, false)) return array;
  if (nb::try_cast<Array>(nb::module_::import_("numpy").attr("asarray")(object), array, false))
    return array;
  throw InvalidArgument(cat("an array of numbers expected, not ", nb::str(object.type()).c_str()));
}

WholeNumbers whole_numbers(nb::handle object, const std::string& what, int64_t least,
                           int64_t most) {
  const Array array = as_array(object);
  WholeNumbers numbers;
  for (size_t i = 0; i < array.ndim(); ++i) numbers.shape.push_back(array.shape(i));
  if (numbers.shape.empty()) throw InvalidArgument(what + " is a single number, not an array");
  numbers.values.reserve(array.size());
  const bool known =
      [&]<class... T>(std::type_identity<T>...) {
        return (copy_if<T>(array, what, least, most, numbers) || ...);
      }(std::type_identity<int64_t>(), std::type_identity<int32_t>(), std::type_identity<int16_t>(),
        std::type_identity<int8_t>(), std::type_identity<uint64_t>(),
        std::type_identity<uint32_t>(), std::type_identity<uint16_t>(),
        std::type_identity<uint8_t>(), std::type_identity<double>(), std::type_identity<float>());
  if (!known)
    throw InvalidArgument(what +
                          " must be an array of integers, or of floats that are whole numbers");
  return numbers;
}

std::vector<int32_t> small_numbers(nb::handle object, const std::string& what) {
  const WholeNumbers numbers = whole_numbers(object, what, std::numeric_limits<int32_t>::min(),
                                             std::numeric_limits<int32_t>::max());
  std::vector<int32_t> small;
  small.reserve(numbers.values.size());
  for (const int64_t value : numbers.values) small.push_back(static_cast<int32_t>(value));
  return small;
}

}  // namespace trimtab::python
