// SPDX-License-Identifier: Apache-2.0
// Loads [layers, experts] or [steps, layers, experts] and placements [layers, slots] as .npy.
// DeepSeek EPLB's weight is the first, its phy2log the last. Its log2phy, which would be a wrong
// placement if it were taken for phy2log, is refused.
#include "trimtab/npy.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/cat.h"
#include "files/npy_header.h"
#include "recordings/checked_placement.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/npy_numbers.h"
#include "recordings/readers.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The value as a whole number in [0, 2^63), or nothing when it is none.
template <class T>
std::optional<int64_t> whole(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T kEnd = T{9223372036854775808.0};
    if (!(value >= 0 && value < kEnd) || std::trunc(value) != value) return std::nullopt;
  } else {
    if (!std::in_range<int64_t>(value) || std::cmp_less(value, 0)) return std::nullopt;
  }
  return static_cast<int64_t>(value);
}

// "[step, layer, expert]", in the order of the shape.
std::string place_of(int64_t element, std::span<const int64_t> shape) {
  std::string place;
  for (size_t dim = shape.size(); dim-- > 0;) {
    place = cat(element % shape[dim], place.empty() ? "" : ", ", place);
    element /= shape[dim];
  }
  return cat("[", place, "]");
}

template <class T>
void append_whole_numbers(const NpyArray& source, const std::string& file, NpyNumbers& array) {
  const int64_t number = source.data.size() / sizeof(T);
  array.values.reserve(number);
  for (int64_t i = 0; i < number; ++i) {
    T value;
    std::memcpy(&value, source.data.data() + i * sizeof(T), sizeof(T));
    const std::optional<int64_t> whole_number = whole(value);
    if (!whole_number) {
      const int64_t at = i * sizeof(T);
      throw FormatError(file, array.data_offset + at,
                        cat("npy: element ", place_of(i, array.shape), " is ", +value,
                            ", no whole number from 0 up to 2^63"));
    }
    array.values.push_back(*whole_number);
  }
}

using AppendWholeNumbers = void (*)(const NpyArray&, const std::string&, NpyNumbers&);
AppendWholeNumbers append_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return append_whole_numbers<uint8_t>;
    case DType::kI8:
      return append_whole_numbers<int8_t>;
    case DType::kI16:
      return append_whole_numbers<int16_t>;
    case DType::kU16:
      return append_whole_numbers<uint16_t>;
    case DType::kI32:
      return append_whole_numbers<int32_t>;
    case DType::kU32:
      return append_whole_numbers<uint32_t>;
    case DType::kI64:
      return append_whole_numbers<int64_t>;
    case DType::kU64:
      return append_whole_numbers<uint64_t>;
    case DType::kF32:
      return append_whole_numbers<float>;
    case DType::kF64:
      return append_whole_numbers<double>;
    default:
      return nullptr;
  }
}

template <class T>
std::string image_of(DType dtype, std::vector<int64_t> shape, std::span<const T> data) {
  std::string image = npy_header(dtype, shape);
  image.append(reinterpret_cast<const char*>(data.data()), data.size_bytes());
  return image;
}

}  // namespace

NpyNumbers read_npy_numbers(const Content& content, const char* want, int min_dims, int max_dims) {
  const std::string& file = content.file();
  const NpyArray source = parse_npy(content.image(), file);
  const int64_t dims = std::ssize(source.shape);
  if (dims < min_dims || dims > max_dims || source.data.empty()) {
    std::string shape;
    for (const int64_t n : source.shape) shape += cat(shape.empty() ? "" : ", ", n);
    throw FormatError(file, 0, cat("npy: an array of shape (", shape, "); ", want, " expected"));
  }
  const AppendWholeNumbers append = append_of(source.dtype);
  if (append == nullptr) {
    throw FormatError(file, 0, "npy: counts and ids are integers, or f4 or f8 with whole numbers");
  }
  NpyNumbers array{source.shape, {}, std::ssize(content.image()) - std::ssize(source.data)};
  append(source, file, array);
  return array;
}

Recording read_npy_loads(const Content& content, const RecordingOptions& options) {
  NpyNumbers array =
      read_npy_numbers(content, "[layers, experts] or [steps, layers, experts]", 2, 3);
  return dense_recording(content.file(), array.shape, std::move(array.values), options);
}

std::string npy_loads(const Recording& recording) {
  const Load& load = recording.load;
  return image_of<int64_t>(DType::kI64, {load.num_steps, load.num_layers, load.num_experts},
                           load.counts);
}

PlacementFile read_npy_placement(const Content& content, const PlacementOptions& options) {
  NpyNumbers array = read_npy_numbers(content, "[layers, slots]", 2, 2);
  SlotTable table;
  table.num_layers = array.shape[0];
  const int64_t row_bytes = (std::ssize(content.image()) - array.data_offset) / table.num_layers;
  for (int64_t layer = 0; layer < table.num_layers; ++layer)
    table.layer_at.push_back(array.data_offset + layer * row_bytes);
  table.layer_ids = counted_ids<int>(table.num_layers);
  table.logical = std::move(array.values);
  std::vector<int> slots = slots_per_rank(content.file(), array.shape[1], options);
  return make_placement(content.file(), std::move(table), std::move(slots), 0, options);
}

std::string npy_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  return image_of<int32_t>(DType::kI32, {placement.num_layers(), placement.num_slots()},
                           placement.logical());
}

}  // namespace trimtab
