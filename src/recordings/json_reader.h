// SPDX-License-Identifier: Apache-2.0
// Reads the values of a JSON text one by one. Recordings reach hundreds of megabytes, and every
// error about a value names its place in the file, which a tree of values no longer knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "recordings/byte_order_mark.h"

namespace trimtab {

// Accepts RFC 8259 strictly, at most 64 levels deep, and no key twice in an object. All functions
// throw FormatError where the text is not what they ask for.
class JsonReader {
 public:
  // text: a part of the file that begins at byte `start`, in line `line`. A byte order mark at the
  // begin of the file is passed over. Text and file must outlive the reader.
  JsonReader(std::string_view text, const std::string& file, int64_t start = 0, int64_t line = 1)
      : text_(text),
        file_(file),
        start_(start),
        line_(line),
        at_(start == 0 ? begin_of_text(text) : 0) {}

  void begin_object();
  // Reads the next key of the open object; its value must be read next. Returns false when the
  // object ends, and closes it.
  bool next_key(std::string& key);
  void begin_array();
  // Returns whether an element of the open array must be read next. When not, the array ends, and
  // this closes it.
  bool next_element();

  // The first character of the next token, '\0' at the end.
  char peek();
  // A whole number in [min, max].
  int64_t integer(int64_t min, int64_t max);
  int64_t count() { return integer(0, std::numeric_limits<int64_t>::max()); }
  int id(int max) { return static_cast<int>(integer(0, max)); }
  std::string string();
  void skip_value();
  // Throws when anything but space is left.
  void end();

  // The byte of the file at which the next token begins.
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
  int64_t here() const { return start_ + static_cast<int64_t>(at_); }
  [[noreturn]] void fail_here(const std::string& what) const { fail(here(), what); }

  std::string_view text_;
  const std::string& file_;
  int64_t start_;
  int64_t line_;
  size_t at_;
  std::vector<Open> open_;
};

// The keys "format" and "version" by which Trimtab's own JSON files say what they are.
class FormatKeys {
 public:
  explicit FormatKeys(std::string_view format) : format_(format) {}

  // Reads the value of `key`, which begins at byte `at`, and returns true if it is one of the two.
  // Throws FormatError for another format or version.
  bool read(JsonReader& json, std::string_view key, int64_t at);
  // Throws FormatError unless both were there.
  void check(const std::string& file) const;

 private:
  std::string_view format_;
  bool has_format_ = false, has_version_ = false;
};

}  // namespace trimtab
