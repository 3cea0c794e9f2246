// SPDX-License-Identifier: Apache-2.0
#include "trimtab/weight_format.h"

#include <charconv>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Named {
  Scheme scheme;
  std::string_view name;
};
constexpr Named kNames[] = {{Scheme::kF32, "f32"},   {Scheme::kBF16, "bf16"},
                            {Scheme::kF16, "f16"},   {Scheme::kW8A8, "w8a8"},
                            {Scheme::kW4A8, "w4a8"}, {Scheme::kMXFP8, "mxfp8"},
                            {Scheme::kFP8, "fp8"},   {Scheme::kMXFP4, "mxfp4"}};
constexpr std::string_view kPerChannel = "w4a8-channel", kGroupPrefix = "w4a8-g";

}  // namespace

WeightFormat::WeightFormat(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      scheme = Scheme::kF32;
      return;
    case DType::kBF16:
      scheme = Scheme::kBF16;
      return;
    case DType::kF16:
      scheme = Scheme::kF16;
      return;
    default:
      throw InvalidArgument(cat("weights are stored as F32, BF16, F16 or quantised, not as plain ",
                                trimtab::name(dtype)));
  }
}

DType WeightFormat::quantized_rows() const {
  if (scheme == Scheme::kW8A8 || scheme == Scheme::kW4A8) return DType::kI8;
  return scheme == Scheme::kMXFP8 ? DType::kF8E4M3 : rows();
}

std::string name(WeightFormat format) {
  if (format.scheme == Scheme::kW4A8 && format.group == 0) return std::string(kPerChannel);
  if (format.scheme == Scheme::kW4A8 && format.group != 128) return cat(kGroupPrefix, format.group);
  for (const Named& named : kNames) {
    if (named.scheme == format.scheme) return std::string(named.name);
  }
  return "unknown";
}

WeightFormat parse_weight_format(std::string_view name) {
  for (const Named& named : kNames) {
    if (named.name == name) return named.scheme;
  }
  if (name == kPerChannel) return {Scheme::kW4A8, 0};
  if (name.starts_with(kGroupPrefix)) {
    int group = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kGroupPrefix.size(), end, group);
    if (error == std::errc() && stop == end && group > 0 && group % 8 == 0)
      return {Scheme::kW4A8, group};
  }
  throw InvalidArgument(cat(
      "unknown weight format '", name,
      "': choose one of f32, bf16, f16, w8a8, w4a8, w4a8-g<inputs, a multiple of 8>, w4a8-channel, "
      "mxfp8, fp8, mxfp4"));
}

}  // namespace trimtab
