// SPDX-License-Identifier: Apache-2.0
#include "trimtab/weight_format.h"

#include <charconv>
#include <optional>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Named {
  Scheme scheme;
  std::string_view name;
};
constexpr Named kNames[] = {
    {Scheme::kF32, "f32"},     {Scheme::kBF16, "bf16"},   {Scheme::kF16, "f16"},
    {Scheme::kW8A8, "w8a8"},   {Scheme::kW4A8, "w4a8"},   {Scheme::kMXFP8, "mxfp8"},
    {Scheme::kFP8, "fp8"},     {Scheme::kMXFP4, "mxfp4"}, {Scheme::kW4A16, "w4a16"},
    {Scheme::kW8A16, "w8a16"},
};
// Behind the name of a scheme with groups.
constexpr std::string_view kPerChannel = "-channel", kGroupPrefix = "-g";
constexpr int kGroupMultiple = 8;

std::optional<int> parse_group(std::string_view suffix) {
  if (suffix == kPerChannel) return 0;
  if (!suffix.starts_with(kGroupPrefix)) return std::nullopt;
  int group = 0;
  const char* const end = suffix.data() + suffix.size();
  const auto [stop, error] = std::from_chars(suffix.data() + kGroupPrefix.size(), end, group);
  const bool valid = error == std::errc() && stop == end && group > 0;
  return valid && group % kGroupMultiple == 0 ? std::optional(group) : std::nullopt;
}

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
  for (const Named& named : kNames) {
    if (named.scheme != format.scheme) continue;
    if (!format.has_groups() || format == WeightFormat(format.scheme))
      return std::string(named.name);
    return format.group == 0 ? cat(named.name, kPerChannel)
                             : cat(named.name, kGroupPrefix, format.group);
  }
  return "unknown";
}

std::vector<std::string> weight_format_names() {
  std::vector<std::string> names;
  for (const Named& named : kNames) {
    names.emplace_back(named.name);
    if (!WeightFormat(named.scheme).has_groups()) continue;
    names.push_back(cat(named.name, kGroupPrefix, "N"));
    names.push_back(cat(named.name, kPerChannel));
  }
  return names;
}

WeightFormat parse_weight_format(std::string_view name) {
  for (const Named& named : kNames) {
    if (!name.starts_with(named.name)) continue;
    const std::string_view suffix = name.substr(named.name.size());
    if (suffix.empty()) return named.scheme;
    const std::optional<int> group = parse_group(suffix);
    if (group && WeightFormat(named.scheme).has_groups()) return {named.scheme, *group};
  }
  std::string names;
  for (const std::string& each : weight_format_names()) names += cat(each, ", ");
  throw InvalidArgument(cat("unknown weight format '", name, "': choose one of ", names, "where N ",
                            "inputs share a scale, a multiple of ", kGroupMultiple));
}

}  // namespace trimtab
