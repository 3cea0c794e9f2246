// SPDX-License-Identifier: Apache-2.0
// The byte order mark that spreadsheets and some editors write in front of UTF-8 text.
#pragma once

#include <cstddef>
#include <string_view>

namespace trimtab {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The place at which the text begins: behind the mark, or 0 where there is none.
inline size_t begin_of_text(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

}  // namespace trimtab
