// SPDX-License-Identifier: Apache-2.0
// Checks of option values, without the ranges that CLI11 would print in the help.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trimtab::cli {

// An empty variable of a script must not silently mean the default.
inline CLI::Validator is_given() {
  return {[](const std::string& text) { return std::string(text.empty() ? "is empty" : ""); }, ""};
}

inline CLI::Validator one_to(int most) {
  return CLI::Range(1, most).description("");
}

inline CLI::Validator zero_or_more() {
  return CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()).description("");
}

inline CLI::Validator one_of(std::vector<std::string> names) {
  return CLI::IsMember(std::move(names)).description("");
}

}  // namespace trimtab::cli
