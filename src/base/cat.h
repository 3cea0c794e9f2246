// SPDX-License-Identifier: Apache-2.0
// Builds the text of an error from its parts.
#pragma once

#include <sstream>
#include <string>

namespace trimtab {

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace trimtab
