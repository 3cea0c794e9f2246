// SPDX-License-Identifier: Apache-2.0
#include "files/json.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "base/cat.h"
#include "files/stand_in.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using nlohmann::json;

// Far above any config.json. Recursive code walks over the tree, so it must not be deep.
constexpr size_t kMaxDepth = 64;

// Refuses deep nesting and keys that come twice. The tree would hide the latter: it keeps the last.
class Guard {
 public:
  explicit Guard(const std::string& file) : file_(file) {}

  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      keys_.emplace_back();
      if (keys_.size() > kMaxDepth)
        throw FormatError(file_, -1, cat("nested more than ", kMaxDepth, " deep"));
    } else if (event == json::parse_event_t::object_end ||
               event == json::parse_event_t::array_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second)
        throw FormatError(file_, -1, cat("key '", key, "' comes twice"));
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;  // for each open object and array
};

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  refuse_stand_in(text, file);
  // The parser takes a NUL for the end and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    throw FormatError(file, nul, "a NUL byte in JSON");
  }
  try {
    return json::parse(text, Guard(file));
  } catch (const json::exception& error) {
    const auto* const parse_error = dynamic_cast<const json::parse_error*>(&error);
    // The message begins with "[json.exception.parse_error.101] ", which says nothing to a user.
    const std::string_view what = error.what();
    throw FormatError(file, parse_error ? static_cast<int64_t>(parse_error->byte) : -1,
                      cat("not valid JSON: ", what.substr(what.find("] ") + 2)));
  }
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FormatError(path, -1, cat("can't be opened: ", std::strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  if (text.bad()) throw FormatError(path, -1, cat("can't be read: ", std::strerror(errno)));
  return std::move(text).str();
}

json read_json(const std::string& path) {
  return parse_json(read_text(path), path);
}

}  // namespace trimtab
