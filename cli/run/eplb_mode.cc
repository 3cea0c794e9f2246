// SPDX-License-Identifier: Apache-2.0
#include "cli/run/eplb_mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/nearest_name.h"
#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

enum class TakesFile : uint8_t { kNo, kMay, kMust };

struct NamedMode {
  EplbMode::Kind kind;
  std::string_view name;
  TakesFile file;
};

constexpr std::array<NamedMode, 5> kModes = {
    {{EplbMode::Kind::kOff, "off", TakesFile::kNo},
     {EplbMode::Kind::kStatic, "static", TakesFile::kMust},
     {EplbMode::Kind::kRecord, "record", TakesFile::kMust},
     {EplbMode::Kind::kDynamic, "dynamic", TakesFile::kMay},
     {EplbMode::Kind::kScreen, "screen", TakesFile::kMay}}};

}  // namespace

std::string_view name(EplbMode::Kind kind) {
  return std::ranges::find(kModes, kind, &NamedMode::kind)->name;
}

EplbMode parse_eplb_mode(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto* const found = std::ranges::find(kModes, name, &NamedMode::name);
  if (found == kModes.end()) {
    std::vector<std::string_view> names;
    for (const NamedMode& mode : kModes) names.push_back(mode.name);
    throw InvalidArgument(
        fmt::format("must be off, static:FILE, record:FILE, dynamic[:FILE] or "
                    "screen[:FILE], not \"{}\"{}",
                    text, did_you_mean(name, names)));
  }
  const bool has_colon = colon != text.npos;
  const std::string file = has_colon ? text.substr(colon + 1) : "";
  if (has_colon && found->file == TakesFile::kNo) {
    throw InvalidArgument(fmt::format("{} takes no file", name));
  }
  if (file.empty() && (has_colon || found->file == TakesFile::kMust)) {
    throw InvalidArgument(fmt::format("{} needs a file: {}:FILE", name, name));
  }
  return {found->kind, file};
}

}  // namespace trimtab::cli
