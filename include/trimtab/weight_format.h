// SPDX-License-Identifier: Apache-2.0
// A WeightFormat says how weights are stored, and so what the rows that meet them are rounded to.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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
  kMXFP4,  // e2m1 weights with a power of two per 32 inputs; exact in bf16, bf16 rows
  kW4A16,  // int4 weights with a scale and a zero point per output and group of inputs, bf16 rows;
           // weights less their zero points are exact in bf16, a group's sum is scaled in f32
  kW8A16   // the same with int8 weights
};

struct WeightFormat {
  Scheme scheme = Scheme::kF32;
  // Where the scheme has groups: inputs that share a scale, a multiple of 8; 0: all of them.
  int group = 0;

  WeightFormat() = default;
  // int4: groups of 128; int8: all inputs of an output.
  WeightFormat(Scheme s)  // NOLINT: implicit
      : scheme(s), group(s == Scheme::kW4A8 || s == Scheme::kW4A16 ? 128 : 0) {}
  WeightFormat(Scheme s, int g) : scheme(s), group(g) {}
  // kF32, kBF16 or kF16. Throws InvalidArgument.
  WeightFormat(DType dtype);  // NOLINT: implicit

  bool operator==(const WeightFormat&) const = default;

  // kW4A8, kW4A16 and kW8A16 come with any group.
  bool has_groups() const {
    return scheme == Scheme::kW4A8 || scheme == Scheme::kW4A16 || scheme == Scheme::kW8A16;
  }

  // The type in which rows are given: kF32 for kF32 and kF16, else kBF16.
  DType rows() const {
    return scheme == Scheme::kF32 || scheme == Scheme::kF16 ? DType::kF32 : DType::kBF16;
  }
  // The type to which rows are rounded before they are multiplied, and in which they may be given
  // too, with their scales: kI8 for kW8A8 and kW4A8, kF8E4M3 for kMXFP8, else as rows().
  DType quantized_rows() const;
};

// "f32", "bf16", "f16", "w8a8", "w4a8" (group 128), "w4a8-g32" (any group), "w4a8-channel",
// "mxfp8", "fp8", "mxfp4", "w4a16" (as w4a8), "w8a16" (all inputs), "w8a16-g128" (any group).
std::string name(WeightFormat format);
// Throws InvalidArgument with the list.
WeightFormat parse_weight_format(std::string_view name);
// All that parse_weight_format() takes, for help texts: "f32", ..., "w4a8-gN", ...; N is any
// multiple of 8.
std::vector<std::string> weight_format_names();

}  // namespace trimtab
