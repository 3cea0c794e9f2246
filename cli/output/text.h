// SPDX-License-Identifier: Apache-2.0
// Text of byte-level models: a token id below 256 is that byte, all others are special.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trimtab::cli {

// The bytes of the tokens; special ones are left out.
std::string bytes_of(std::span<const int32_t> token_ids);

// Replaces what is not UTF-8 by U+FFFD, one for each maximal part of a character as the Unicode
// Standard (3.9) recommends and Python does.
std::string valid_utf8(std::string_view bytes);

// The bytes up to the last character, if more bytes may belong to it, or else all of them: what
// valid_utf8() makes of so many does not change by bytes behind them.
size_t whole_characters(std::string_view bytes);

// Replaces control characters but tab and newline by U+FFFD, so that text can't drive the terminal.
std::string printable(std::string_view utf8);

}  // namespace trimtab::cli
