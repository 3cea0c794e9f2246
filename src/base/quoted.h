// SPDX-License-Identifier: Apache-2.0
// Writes JSON strings.
#pragma once

#include <string>
#include <string_view>

namespace trimtab {

// Appends the text as a JSON string with its quotes.
inline void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

// Not called quoted: for a std::string the compiler would find std::quoted as well, and prefer it.
inline std::string json_quoted(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

}  // namespace trimtab
