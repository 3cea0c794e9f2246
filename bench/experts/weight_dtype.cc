// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/weight_dtype.h"

#include <array>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

constexpr double kBF16Unit = 0x1p-8;
// A scale of 4 bytes (of 1 byte) for so many weights.
constexpr double with_scales(double bits, int group, int scale_bytes) {
  return bits + 8.0 * scale_bytes / group;
}

const std::array kDTypes = {
    WeightDType{"f32", Scheme::kF32, DType::kF32, DType::kF32, DotKind::kF32, 32, 0, 0},
    WeightDType{"bf16", Scheme::kBF16, DType::kBF16, DType::kBF16, DotKind::kBF16, 16, kBF16Unit,
                0},
    WeightDType{"f16", Scheme::kF16, DType::kF32, DType::kBF16, DotKind::kF32, 16, 0, 0},
    // The scale of a whole output weighs next to nothing.
    WeightDType{"w8a8", Scheme::kW8A8, DType::kBF16, DType::kBF16, DotKind::kI8, 8, kBF16Unit,
                1.0 / 254},
    WeightDType{"w4a8", Scheme::kW4A8, DType::kBF16, DType::kBF16, DotKind::kI8,
                with_scales(4, 128, 4), kBF16Unit, 1.0 / 254},
    WeightDType{"mxfp8", Scheme::kMXFP8, DType::kBF16, DType::kBF16, DotKind::kBF16,
                with_scales(8, 32, 1), kBF16Unit, 0x1p-4},
    WeightDType{"fp8", Scheme::kFP8, DType::kBF16, DType::kBF16, DotKind::kBF16,
                with_scales(8, 128, 4), kBF16Unit, 0},
    WeightDType{"mxfp4", Scheme::kMXFP4, DType::kBF16, DType::kBF16, DotKind::kBF16,
                with_scales(4, 32, 1), kBF16Unit, 0},
    WeightDType{"w4a16", Scheme::kW4A16, DType::kBF16, DType::kBF16, DotKind::kBF16,
                with_scales(4, 128, 4), kBF16Unit, 0},
    WeightDType{"w4a16-g32",
                {Scheme::kW4A16, 32},
                DType::kBF16,
                DType::kBF16,
                DotKind::kBF16,
                with_scales(4, 32, 4),
                kBF16Unit,
                0},
    WeightDType{"w8a16", Scheme::kW8A16, DType::kBF16, DType::kBF16, DotKind::kBF16, 8, kBF16Unit,
                0},
};

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
