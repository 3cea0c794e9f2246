// SPDX-License-Identifier: Apache-2.0
// Reads small JSON files (config.json, an index) as a tree. Duplicate keys, deep nesting and bytes
// behind the value are refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trimtab {

// Throws FormatError with the file and the byte at which the text is no longer valid.
nlohmann::json parse_json(std::string_view text, const std::string& file);
// Reads a whole file. Throws FormatError when it can't be read.
std::string read_text(const std::string& path);
nlohmann::json read_json(const std::string& path);

}  // namespace trimtab
