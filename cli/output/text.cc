// SPDX-License-Identifier: Apache-2.0
#include "cli/output/text.h"

#include <algorithm>

namespace trimtab::cli {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

struct Lead {
  size_t length;            // bytes of the character; 0: can't start one
  unsigned char low, high;  // what the second byte may be (Unicode Standard, table 3-7)
};

Lead lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte < 0xf0) {
    return {3, static_cast<unsigned char>(byte == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(byte == 0xed ? 0x9f : 0xbf)};
  }
  if (byte < 0xf5) {
    return {4, static_cast<unsigned char>(byte == 0xf0 ? 0x90 : 0x80),
            static_cast<unsigned char>(byte == 0xf4 ? 0x8f : 0xbf)};
  }
  return {0, 0, 0};
}

}  // namespace

std::string bytes_of(std::span<const int32_t> token_ids) {
  std::string bytes;
  for (const int32_t id : token_ids) {
    if (id < 256) bytes.push_back(static_cast<char>(id));
  }
  return bytes;
}

std::string valid_utf8(std::string_view bytes) {
  std::string valid;
  for (size_t i = 0; i < bytes.size();) {
    const Lead first = lead(static_cast<unsigned char>(bytes[i]));
    unsigned char low = first.low, high = first.high;
    size_t n = 1;
    while (n < first.length && i + n < bytes.size()) {
      const auto next = static_cast<unsigned char>(bytes[i + n]);
      if (next < low || next > high) break;
      low = 0x80;
      high = 0xbf;
      ++n;
    }
    valid += n == first.length ? bytes.substr(i, n) : kReplacement;
    i += n;
  }
  return valid;
}

size_t whole_characters(std::string_view bytes) {
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const size_t at = bytes.size() - back;
    if (lead(static_cast<unsigned char>(bytes[at])).length > back) return at;
  }
  return bytes.size();
}

std::string printable(std::string_view utf8) {
  std::string clean;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto byte = static_cast<unsigned char>(utf8[i]);
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n') || byte == 0x7f;
    // U+0080 .. U+009F
    const bool control_2 =
        byte == 0xc2 && i + 1 < utf8.size() && static_cast<unsigned char>(utf8[i + 1]) < 0xa0;
    if (control || control_2) {
      clean += kReplacement;
      i += control_2 ? 1 : 0;
    } else {
      clean.push_back(utf8[i]);
    }
  }
  return clean;
}

}  // namespace trimtab::cli
