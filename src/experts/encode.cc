// SPDX-License-Identifier: Apache-2.0
#include "experts/encode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr int kInt8Zero = 128, kInt4Zero = 8;
constexpr float kE4M3Max = 448;
constexpr float kLargestBF16 = 0x1.fep127F;

uint8_t code_at(const MatrixSource& source, int64_t row, int64_t col) {
  const int64_t index = source.index(row, col);
  if (bits(source.dtype) == 8) return std::to_integer<uint8_t>(source.data[index]);
  const auto pair = std::to_integer<unsigned>(source.data[index / 2]);
  return static_cast<uint8_t>(index % 2 == 0 ? pair & 15U : pair >> 4);
}

// Weights are multiplied as bf16: whatever their codes are, they must not become infinite. (The
// kernels also need e8m0 scales of at most 247.)
void check_scale(float scale, int64_t row) {
  constexpr float kMost = kLargestBF16 / kE4M3Max;
  if (std::abs(scale) <= kMost) return;
  throw InvalidArgument(
      cat("weights of row ", row, " have the scale ", scale, "; at most ", kMost, " is stored"));
}

// Decoding in registers has no way out for NaN.
void check_numbers(const uint8_t* codes, int64_t count, int64_t row) {
  for (int64_t i = 0; i < count; ++i) {
    if ((codes[i] & 0x7fU) == 0x7fU)
      throw InvalidArgument(cat("weight ", i, " of row ", row, " is nan"));
  }
}

// The kernels do without negative zeros, and without products with the scale that are subnormal in
// bf16: both become 0.
template <class Code>
void make_normal(uint8_t* codes, int64_t count, int scale) {
  // The scale has the bias of a float's exponent; the smallest normal number is 2^-126.
  const float smallest = std::ldexp(1.0F, 1 - scale);
  for (int64_t i = 0; i < count; ++i) {
    const float value = std::abs(to_float(Code{codes[i]}));
    if (value == 0.0F || value < smallest) codes[i] = 0;
  }
}

// The e2m1 code of x, to nearest, ties to even, at most 6 in magnitude.
uint8_t to_e2m1(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7fffffffU;
  // From 1 on: 1 bit of mantissa stays, the bias goes from 127 to 1. Below: multiples of 0.5, the
  // unit of 2^22.
  const uint32_t normal = ((magnitude + 0x1fffffU + ((magnitude >> 22) & 1U)) >> 22) - (126U << 1);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 4194304.0F) - 0x4a800000U;
  const uint32_t code = magnitude >= 0x3f800000U ? normal : subnormal;
  return static_cast<uint8_t>(std::min(code, 7U) | (u >> 31) << 3);
}

template <class T>
void put(std::byte* out, int64_t index, T value) {
  std::memcpy(out + index * int64_t{sizeof(T)}, &value, sizeof(T));
}

void check_finite(const float* x, int64_t count, int64_t row) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i]))
      throw InvalidArgument(cat("weight ", i, " of row ", row, " is ", x[i]));
  }
}

// Numbers must not become infinite by rounding: those from `limit` on would.
void check_range(const float* x, int64_t count, int64_t row, float limit, Scheme scheme) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::abs(x[i]) < limit || !std::isfinite(x[i])) continue;
    throw InvalidArgument(cat("weight ", i, " of row ", row, " is ", x[i], ", more than ",
                              name(WeightFormat(scheme)), " can hold"));
  }
}

// Of the elements of a source that is stored as it is; null: it is not.
std::optional<DType> plain_dtype(Scheme scheme) {
  switch (scheme) {
    case Scheme::kF32:
      return DType::kF32;
    case Scheme::kBF16:
      return DType::kBF16;
    case Scheme::kF16:
      return DType::kF16;
    default:
      return std::nullopt;
  }
}

// f16: to nearest, ties to even; what is too large becomes infinite.
uint16_t to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000U,
                 magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);
  if (magnitude <
      0x38800000U) {  // subnormal: in units of 2^-24, by adding a number whose unit that is
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - 0x3f000000U));
  }
  return static_cast<uint16_t>(
      sign | ((magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13));
}

// To nearest, ties to even, for |x| < 2^22.
float rounded(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
  return (x + kRound) - kRound;
}

// Symmetric int4: of two scales, one that reaches both ends and one that uses -8 for the largest
// magnitude, the one with the smaller error.
float quantize_int4(const float* x, int64_t count, std::byte* codes, float extreme) {
  const auto code = [](float value, float inverse) {
    return std::clamp(rounded(value * inverse), -8.0F, 7.0F);
  };
  const auto error = [&](float scale) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float difference = x[i] - code(x[i], 1 / scale) * scale;
      sum += difference * difference;
    }
    return sum;
  };
  if (extreme == 0.0F) {
    std::fill_n(codes, count, std::byte{kInt4Zero});
    return 0.0F;
  }
  const float even = std::abs(extreme) / 7, wide = extreme / -8;
  const float scale = error(wide) < error(even) ? wide : even;
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::byte>(static_cast<int>(code(x[i], 1 / scale)) + kInt4Zero);
  }
  return scale;
}

}  // namespace

bool same_quantization(const MatrixSource& source, WeightFormat format, const Storage& storage) {
  if (!source.is_quantised()) return false;
  const Quantization& q = source.quantization;
  // Rows in bf16 can be put into another order.
  const bool takes_order = format.scheme == Scheme::kW4A16 || format.scheme == Scheme::kW8A16;
  if (q.column_blocks != nullptr && (!takes_order || columns_by_block(source).empty()))
    return false;
  // Several groups may have the scale of one block.
  if (q.block_cols < source.cols && q.block_cols % storage.group != 0) return false;
  switch (format.scheme) {
    case Scheme::kW8A8:
    case Scheme::kW8A16:
      return source.dtype == DType::kI8 || source.dtype == DType::kU8;
    case Scheme::kW4A8:
    case Scheme::kW4A16:
      return source.dtype == DType::kU4;
    case Scheme::kMXFP8:
      return source.dtype == DType::kF8E4M3 && q.scale_dtype == DType::kF8E8M0;
    case Scheme::kFP8:
      return source.dtype == DType::kF8E4M3;
    case Scheme::kMXFP4:
      return source.dtype == DType::kF4 && q.scale_dtype == DType::kF8E8M0;
    default:
      return false;
  }
}

RowEncoder::RowEncoder(const MatrixSource& source, WeightFormat format, const Storage& storage,
                       std::vector<int32_t> order)
    : source_(source),
      scheme_(format.scheme),
      storage_(storage),
      copies_(same_quantization(source, format, storage)),
      order_(std::move(order)),
      values_(copies_ ? 0 : cells(storage.padded_in)) {}

void RowEncoder::encode(int64_t row, std::byte* codes, std::byte* scales, int32_t* zeros) {
  if (copies_) return copy(row, codes, scales, zeros);
  quantize(row, codes, scales);
}

void RowEncoder::copy(int64_t row, std::byte* codes, std::byte* scales, int32_t* zeros) const {
  const Quantization& q = source_.quantization;
  auto* const bytes = reinterpret_cast<uint8_t*>(codes);
  const uint8_t shift = source_.dtype == DType::kI8 ? kInt8Zero : 0;  // to unsigned
  const auto column = [this](int64_t i) {
    return order_.empty() ? i : int64_t{order_[static_cast<size_t>(i)]};
  };
  for (int64_t i = 0; i < source_.cols; ++i)
    bytes[i] = static_cast<uint8_t>(code_at(source_, row, column(i)) + shift);
  if (source_.dtype == DType::kF8E4M3) check_numbers(bytes, source_.cols, row);
  for (int64_t g = 0; g < storage_.groups(); ++g) {
    const int64_t block =
        source_.block_of_column(column(std::min(g * storage_.group, source_.cols - 1)));
    const float scale = source_.scale(row / q.block_rows, block);
    if (source_.dtype == DType::kF8E4M3 || source_.dtype == DType::kF4) check_scale(scale, row);
    if (storage_.scale_bytes == 1) {
      const auto e8m0 = std::to_integer<uint8_t>(
          q.scales[row / q.block_rows * q.scale_row_stride + block * q.scale_col_stride]);
      put(scales, g, e8m0);
      normalize(bytes, g, e8m0);
    } else {
      put(scales, g, scale);
    }
    if (zeros == nullptr) continue;
    zeros[g] = source_.zero_point(row / q.block_rows, block) + shift;
    if (storage_.zero_bytes == 1 && zeros[g] > 255) {
      throw InvalidArgument(cat("weights of row ", row, " have the zero point ", zeros[g],
                                "; at most 255 is stored"));
    }
  }
}

void RowEncoder::normalize(uint8_t* codes, int64_t group, int scale) const {
  const int64_t first = group * storage_.group;
  const int64_t count = std::min(storage_.group, source_.cols - first);
  if (scheme_ == Scheme::kMXFP8) {
    make_normal<e4m3_t>(codes + first, count, scale);
  } else {
    make_normal<e2m1_t>(codes + first, count, scale);
  }
}

void RowEncoder::quantize(int64_t row, std::byte* codes, std::byte* scales) {
  float* const x = values_.data();
  const int64_t in = source_.cols;
  if (source_.dtype == plain_dtype(scheme_) && source_.col_stride == 1) {
    std::memcpy(codes, source_.data + shape_bytes(source_.dtype, row, source_.row_stride),
                shape_bytes(source_.dtype, in));
    return;
  }
  read_row(source_, row, x);
  // Finite codes and scales may have infinite products.
  if (source_.is_quantised()) check_finite(x, in, row);
  switch (scheme_) {
    case Scheme::kF32:
      std::memcpy(codes, x, shape_bytes(DType::kF32, in));
      return;
    case Scheme::kBF16:
      check_range(x, in, row, 0x1.ffp127F, scheme_);
      for (int64_t i = 0; i < in; ++i) put(codes, i, to_bf16(x[i]));
      return;
    case Scheme::kF16:
      check_range(x, in, row, 65520.0F, scheme_);
      for (int64_t i = 0; i < in; ++i) put(codes, i, to_f16(x[i]));
      return;
    default:
      break;
  }
  check_finite(x, in, row);
  // Padding counts as zeros, which no scale depends on.
  auto* const bytes = reinterpret_cast<uint8_t*>(codes);
  if (scheme_ == Scheme::kW8A8 || scheme_ == Scheme::kW8A16) {
    // A group is a row of its own.
    const int64_t groups = storage_.groups(), group = storage_.group;
    quantize_rows(ConstRows(x, groups, group), Rows(codes, groups, group, group, DType::kI8),
                  Rows(scales, groups, 1, 1, DType::kF32));
    for (int64_t i = 0; i < storage_.padded_in; ++i)
      bytes[i] = static_cast<uint8_t>(bytes[i] + kInt8Zero);
    return;
  }
  if (scheme_ == Scheme::kMXFP8) {
    const int64_t padded = storage_.padded_in;
    const ScaleShape shape = scale_shape(DType::kF8E4M3, padded);
    quantize_rows(ConstRows(x, 1, padded), Rows(codes, 1, padded, padded, DType::kF8E4M3),
                  Rows(scales, 1, shape.cols, shape.cols, shape.dtype));
    for (int64_t g = 0; g < storage_.groups(); ++g)
      normalize(bytes, g, std::to_integer<int>(scales[g]));
    return;
  }
  for (int64_t g = 0; g < storage_.groups(); ++g) {
    const int64_t first = g * storage_.group;
    const float* const from = x + first;
    const float extreme = *std::max_element(
        from, from + storage_.group, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const float largest = std::abs(extreme);
    if (scheme_ == Scheme::kW4A8 || scheme_ == Scheme::kW4A16) {
      put(scales, g, quantize_int4(from, storage_.group, codes + first, extreme));
    } else if (scheme_ == Scheme::kFP8) {
      const float scale = largest / kE4M3Max;
      for (int64_t i = 0; i < storage_.group; ++i)
        put(codes, first + i, to_e4m3(scale == 0.0F ? 0.0F : from[i] / scale));
      put(scales, g, scale);
    } else {
      // The largest exponent of e2m1 is 2.
      const int exponent = largest == 0.0F ? 0 : std::clamp(std::ilogb(largest) - 2 + 127, 1, 254);
      const float inverse = std::ldexp(1.0F, 127 - exponent);
      for (int64_t i = 0; i < storage_.group; ++i) {
        put(codes, first + i, to_e2m1(from[i] * inverse));
      }
      put(scales, g, static_cast<uint8_t>(exponent));
      normalize(bytes, g, exponent);
    }
  }
}

}  // namespace trimtab
