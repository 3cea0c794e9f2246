// SPDX-License-Identifier: Apache-2.0
// Small JSON files (config.json, an index) as a tree, strictly: no duplicate keys, no deep nesting,
// no bytes left over.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace trimtab {

// Throws FormatError with file and the byte offset where the text stops being what is asked for.
nlohmann::json parse_json(std::string_view text, const std::string& file);
// A whole file; throws FormatError when it can't be read.
std::string read_text(const std::string& path);
nlohmann::json read_json(const std::string& path);

}  // namespace trimtab
