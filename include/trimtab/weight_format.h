// SPDX-License-Identifier: Apache-2.0
// A WeightFormat says how weights are stored, and so what the rows that meet them are rounded to.
#pragma once

#include <string>
#include <string_view>

#include "trimtab/tensor.h"

namespace trimtab {

enum class Scheme {
  kF32,    // f32 weights, f32 rows
  kBF16,   // bf16 weights, bf16 rows, sums in f32
  kF16,    // f16 weights, f32 rows
  kW8A8,   // int8 weights with a scale per output, int8 rows with a scale per token; exact sums
  kW4A8,   // int4 weights with a scale and a zero point per output and group of inputs, int8 rows;
           // sums exact in a group
  kMXFP8,  // OCP microscaling: e4m3 weights and rows, a power of two per 32 inputs; sums in f32
  kFP8,    // e4m3 weights with a scale per 128 inputs, rounded to bf16 on the way to bf16 rows
  kMXFP4   // e2m1 weights with a power of two per 32 inputs; exact in bf16, bf16 rows
};

struct WeightFormat {
  Scheme scheme = Scheme::kF32;
  // kW4A8 only: inputs that share a scale, a multiple of 8; 0: all of them.
  int group = 0;

  WeightFormat() = default;
  WeightFormat(Scheme s) : scheme(s), group(s == Scheme::kW4A8 ? 128 : 0) {}  // NOLINT: implicit
  WeightFormat(Scheme s, int g) : scheme(s), group(g) {}
  // kF32, kBF16 or kF16. Throws InvalidArgument.
  WeightFormat(DType dtype);  // NOLINT: implicit

  bool operator==(const WeightFormat&) const = default;

  // The type in which rows are given: kF32 for kF32 and kF16, else kBF16.
  DType rows() const {
    return scheme == Scheme::kF32 || scheme == Scheme::kF16 ? DType::kF32 : DType::kBF16;
  }
  // The type to which rows are rounded before they are multiplied, and in which they may be given
  // too, with their scales: kI8 for kW8A8 and kW4A8, kF8E4M3 for kMXFP8, else as rows().
  DType quantized_rows() const;
};

// "f32", "bf16", "f16", "w8a8", "w4a8" (group 128), "w4a8-g32" (any group), "w4a8-channel",
// "mxfp8", "fp8", "mxfp4".
std::string name(WeightFormat format);
// Throws InvalidArgument with the list.
WeightFormat parse_weight_format(std::string_view name);

}  // namespace trimtab
