// SPDX-License-Identifier: Apache-2.0
// Reads text files line by line and keeps the line number and the byte that errors name.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "recordings/byte_order_mark.h"
#include "trimtab/error.h"

namespace trimtab {

class LineReader {
 public:
  // Passes over a byte order mark. Both arguments must outlive the reader.
  LineReader(std::string_view text, const std::string& file)
      : text_(text), file_(file), next_(begin_of_text(text)) {}

  // Moves to the next line and drops its end ("\n" or "\r\n"). Returns false when there is none.
  bool next() {
    if (next_ >= text_.size()) return false;
    begin_ = next_;
    const size_t end = std::min(text_.find('\n', begin_), text_.size());
    next_ = end + 1;
    ++number_;
    line_ = text_.substr(begin_, end - begin_);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    return true;
  }
  std::string_view line() const { return line_; }
  int64_t number() const { return number_; }
  // The byte of the file at which the line begins.
  int64_t begin() const { return static_cast<int64_t>(begin_); }
  // Whether the file ends within the line, which then has no line end.
  bool is_unfinished() const { return next_ > text_.size(); }
  bool blank() const { return line_.find_first_not_of(" \t") == line_.npos; }

  // Throws FormatError. part: the piece of the current line that is to blame; without one the error
  // names the begin of the line.
  [[noreturn]] void fail(const std::string& what, std::string_view part = {}) const {
    const int64_t at = part.data() == nullptr ? begin() : part.data() - text_.data();
    throw FormatError(file_, at, cat("line ", number_, ": ", what));
  }

  // The field as a whole number in [0, max] with nothing beside it but blanks. what: the name of
  // the number in errors.
  int64_t whole_number(std::string_view field, const char* what, int64_t max) const {
    std::string_view digits = field;
    while (digits.starts_with(' ') || digits.starts_with('\t')) digits.remove_prefix(1);
    while (digits.ends_with(' ') || digits.ends_with('\t')) digits.remove_suffix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc::invalid_argument || end != digits.data() + digits.size()) {
      fail(cat(what, ": a whole number expected, not '", digits.substr(0, 40), "'"), field);
    }
    if (error != std::errc() || value < 0 || value > max) {
      fail(cat(what, " ", digits.substr(0, 40), " is out of range, which is 0 to ", max), field);
    }
    return value;
  }
  // The same for an id.
  int id(std::string_view field, const char* what, int max) const {
    return static_cast<int>(whole_number(field, what, max));
  }

 private:
  std::string_view text_;
  const std::string& file_;
  size_t next_;
  size_t begin_ = 0;
  int64_t number_ = 0;
  std::string_view line_;
};

}  // namespace trimtab
