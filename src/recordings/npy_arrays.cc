// SPDX-License-Identifier: Apache-2.0
// Loads [layers, experts] or [steps, layers, experts] and placements [layers, slots] as .npy.
// DeepSeek EPLB's weight is the first, its phy2log the last. Its log2phy is refused as a placement:
// taken for phy2log it would be one, and wrong.
#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/cat.h"
#include "files/npy_header.h"
#include "recordings/readers.h"
#include "recordings/tables.h"
#include "trimtab/error.h"
#include "trimtab/npy.h"

namespace trimtab {
namespace {

// A value that is not a whole number in [0, 2^63); its text for the error.
template <class T>
std::optional<int64_t> whole(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T kEnd = T{9223372036854775808.0};
    if (!(value >= 0 && value < kEnd) || std::trunc(value) != value) return std::nullopt;
    return static_cast<int64_t>(value);
  } else {
    if (!std::in_range<int64_t>(value) || static_cast<int64_t>(value) < 0) return std::nullopt;
    return static_cast<int64_t>(value);
  }
}

// "[step, layer, expert]", in the order of the shape.
std::string place_of(size_t element, std::span<const int64_t> shape) {
  std::string place;
  for (size_t dim = shape.size(); dim-- > 0;) {
    const auto size = static_cast<size_t>(shape[dim]);
    place = cat(element % size, place.empty() ? "" : ", ", place);
    element /= size;
  }
  return cat("[", place, "]");
}

template <class T>
std::vector<int64_t> whole_numbers(const NpyArray& array, const std::string& file,
                                   size_t data_offset) {
  std::vector<int64_t> values;
  values.reserve(array.data.size() / sizeof(T));
  for (size_t at = 0; at < array.data.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, array.data.data() + at, sizeof(T));
    const std::optional<int64_t> number = whole(value);
    if (!number) {
      throw FormatError(file, static_cast<int64_t>(data_offset + at),
                        cat("npy: element ", place_of(at / sizeof(T), array.shape), " is ", +value,
                            ", no whole number from 0 up to 2^63"));
    }
    values.push_back(*number);
  }
  return values;
}

struct Array {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
  size_t data_offset;
};

Array read_array(std::span<const std::byte> image, const std::string& file, const char* want,
                 size_t min_dims, size_t max_dims) {
  const NpyArray array = parse_npy(image, file);
  const size_t at = image.size() - array.data.size();
  if (array.shape.size() < min_dims || array.shape.size() > max_dims || array.data.empty()) {
    std::string shape;
    for (const int64_t n : array.shape) shape += cat(shape.empty() ? "" : ", ", n);
    throw FormatError(file, 0, cat("npy: an array of shape (", shape, "); ", want, " expected"));
  }
  const auto with = [&]<class T>(T) {
    return Array{array.shape, whole_numbers<T>(array, file, at), at};
  };
  switch (array.dtype) {
    case DType::kU8:
      return with(uint8_t{});
    case DType::kI8:
      return with(int8_t{});
    case DType::kI16:
      return with(int16_t{});
    case DType::kU16:
      return with(uint16_t{});
    case DType::kI32:
      return with(int32_t{});
    case DType::kU32:
      return with(uint32_t{});
    case DType::kI64:
      return with(int64_t{});
    case DType::kU64:
      return with(uint64_t{});
    case DType::kF32:
      return with(float{});
    case DType::kF64:
      return with(double{});
    default:
      throw FormatError(file, 0,
                        "npy: counts and ids are integers, or f4 or f8 with whole numbers");
  }
}

template <class T>
std::string image_of(DType dtype, std::vector<int64_t> shape, std::span<const T> data) {
  std::string image = npy_header(dtype, shape);
  image.append(reinterpret_cast<const char*>(data.data()), data.size_bytes());
  return image;
}

}  // namespace

Recording read_npy_loads(std::span<const std::byte> image, const std::string& file,
                         const RecordingOptions& options) {
  Array array = read_array(image, file, "[layers, experts] or [steps, layers, experts]", 2, 3);
  return dense_recording(file, array.shape, std::move(array.values), options);
}

std::string npy_loads(const Recording& recording) {
  const Load& load = recording.load;
  return image_of<int64_t>(DType::kI64, {load.num_steps, load.num_layers, load.num_experts},
                           load.counts);
}

PlacementFile read_npy_placement(std::span<const std::byte> image, const std::string& file,
                                 const PlacementOptions& options) {
  Array array = read_array(image, file, "[layers, slots]", 2, 2);
  SlotTable table;
  table.num_layers = static_cast<size_t>(array.shape[0]);
  const size_t row_bytes = (image.size() - array.data_offset) / table.num_layers;
  for (size_t layer = 0; layer < table.num_layers; ++layer) {
    table.layer_at.push_back(static_cast<int64_t>(array.data_offset + layer * row_bytes));
  }
  table.layer_ids = counted_layers(table.num_layers);
  table.logical = std::move(array.values);
  std::vector<int> slots = slots_per_rank(file, array.shape[1], options);
  return make_placement(file, std::move(table), std::move(slots), 0, options);
}

std::string npy_placement(const PlacementFile& file) {
  const Placement& placement = file.placement;
  return image_of<int32_t>(DType::kI32, {placement.num_layers(), placement.num_slots()},
                           all_slots(placement));
}

}  // namespace trimtab
