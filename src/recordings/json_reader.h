// SPDX-License-Identifier: Apache-2.0
// Pulls values out of JSON one by one: recordings reach hundreds of megabytes, and every complaint
// about a value should say where it stands, which a tree no longer knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trimtab {

// Strict RFC 8259, nested at most 64 deep, no key twice in an object. All functions throw
// FormatError where the text is not what they ask for.
class JsonReader {
 public:
  // text: part of a file that starts at byte `start`, in line `line`. Both must outlive the reader.
  JsonReader(std::string_view text, const std::string& file, size_t start = 0, int64_t line = 1)
      : text_(text), file_(file), start_(start), line_(line) {}

  void begin_object();
  // The next key of the open object, its value to be read next; false: the object is closed.
  bool next_key(std::string& key);
  void begin_array();
  // Whether an element of the open array is to be read next; false: the array is closed.
  bool next_element();

  // The first character of the next token, '\0' at the end.
  char peek();
  int64_t integer(int64_t min, int64_t max);
  int64_t count() { return integer(0, std::numeric_limits<int64_t>::max()); }
  std::string string();
  void skip_value();
  // Nothing but space is left.
  void end();

  // Byte in the file of the next token.
  int64_t offset();
  [[noreturn]] void fail(int64_t offset, const std::string& what) const;

 private:
  struct Open {
    bool first = true;
    std::set<std::string> keys;
  };
  void skip_space();
  bool accept(char c);
  void expect(char c);
  void open();
  bool next(char close);
  void escape(std::string& out);
  uint32_t hex4();
  void skip_number();
  [[noreturn]] void fail_here(const std::string& what) const {
    fail(static_cast<int64_t>(start_ + at_), what);
  }

  std::string_view text_;
  const std::string& file_;
  size_t start_;
  int64_t line_;
  size_t at_ = 0;
  std::vector<Open> open_;
};

// A JSON string with its quotes.
std::string quoted(std::string_view text);

}  // namespace trimtab
