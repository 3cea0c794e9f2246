// SPDX-License-Identifier: Apache-2.0
#include "recordings/json_reader.h"

#include <algorithm>
#include <charconv>

#include "base/cat.h"
#include "base/quoted.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr size_t kMaxDepth = 64;  // skip_value is recursive

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_utf8(std::string& out, uint32_t code) {
  const auto byte = [&](uint32_t value) { out += static_cast<char>(value); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
  }
  byte(0x80 | (code & 0x3f));
}

}  // namespace

void JsonReader::fail(int64_t offset, const std::string& what) const {
  const auto end = text_.begin() + std::min<int64_t>(offset - start_, std::ssize(text_));
  throw FormatError(file_, offset,
                    cat("line ", line_ + std::count(text_.begin(), end, '\n'), ": ", what));
}

void JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

char JsonReader::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

int64_t JsonReader::offset() {
  skip_space();
  return here();
}

bool JsonReader::accept(char c) {
  skip_space();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c) {
  if (!accept(c)) fail_here(cat("'", c, "' expected"));
}

void JsonReader::open() {
  if (open_.size() == kMaxDepth) fail_here(cat("nested more than ", kMaxDepth, " deep"));
  open_.emplace_back();
}

bool JsonReader::next(char close) {
  if (accept(close)) {
    open_.pop_back();
    return false;
  }
  if (!open_.back().first && !accept(',')) fail_here(cat("',' or '", close, "' expected"));
  open_.back().first = false;
  return true;
}

void JsonReader::begin_object() {
  expect('{');
  open();
}

bool JsonReader::next_key(std::string& key) {
  if (!next('}')) return false;
  const int64_t at = offset();
  key = string();
  if (!open_.back().keys.insert(key).second)
    fail(at, cat("key ", json_quoted(key), " comes twice"));
  expect(':');
  return true;
}

void JsonReader::begin_array() {
  expect('[');
  open();
}

bool JsonReader::next_element() {
  return next(']');
}

int64_t JsonReader::integer(int64_t min, int64_t max) {
  skip_space();
  const size_t begin = at_;
  skip_number();
  int64_t value = 0;
  const std::string_view digits = text_.substr(begin, at_ - begin);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  at_ = begin;  // for the messages
  if (end != digits.data() + digits.size()) fail_here(cat("a whole number expected, not ", digits));
  if (error != std::errc() || value < min || value > max) {
    fail_here(cat(digits, " is out of range, which is ", min, " to ", max));
  }
  at_ += digits.size();
  return value;
}

void JsonReader::skip_number() {
  const auto digits = [&] {
    if (at_ == text_.size() || !is_digit(text_[at_])) fail_here("a number expected");
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  };
  const auto next_is = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (next_is('-')) ++at_;
  const bool zero = next_is('0');
  const size_t begin = at_;
  digits();
  if (zero && at_ > begin + 1) fail_here("a number starts with 0");
  if (next_is('.')) {
    ++at_;
    digits();
  }
  if (next_is('e') || next_is('E')) {
    ++at_;
    if (next_is('+') || next_is('-')) ++at_;
    digits();
  }
}

uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4)
    fail_here("four hex digits expected");
  at_ += 4;
  return value;
}

void JsonReader::escape(std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) fail_here("a string without an end");
  const char c = text_[at_];
  if (const size_t i = kNames.find(c); i != kNames.npos) {
    ++at_;
    out += kValues[i];
    return;
  }
  if (c != 'u') fail_here("an unknown escape");
  ++at_;
  uint32_t code = hex4();
  if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xdc00 || low > 0xdfff) fail_here("half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xd800 && code < 0xe000) {
    fail_here("half a surrogate pair");
  }
  append_utf8(out, code);
}

std::string JsonReader::string() {
  if (peek() != '"') fail_here("a string expected");
  std::string out;
  for (++at_; at_ < text_.size();) {
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) fail_here("a control character in a string");
    ++at_;
    if (c == '"') return out;
    if (c == '\\') {
      escape(out);
    } else {
      out += c;
    }
  }
  fail_here("a string without an end");
}

void JsonReader::skip_value() {
  std::string key;
  switch (peek()) {
    case '{':
      begin_object();
      while (next_key(key)) skip_value();
      return;
    case '[':
      begin_array();
      while (next_element()) skip_value();
      return;
    case '"':
      string();
      return;
    default:
      break;
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text_.substr(at_).starts_with(word)) {
      at_ += word.size();
      return;
    }
  }
  skip_number();
}

void JsonReader::end() {
  skip_space();
  if (at_ != text_.size()) fail_here("something follows the value");
}

bool FormatKeys::read(JsonReader& json, std::string_view key, int64_t at) {
  if (key == "format") {
    const std::string found = json.string();
    if (found != format_)
      json.fail(at, cat("format is ", json_quoted(found), "; ", json_quoted(format_), " expected"));
    has_format_ = true;
  } else if (key == "version") {
    json.integer(1, 1);
    has_version_ = true;
  } else {
    return false;
  }
  return true;
}

void FormatKeys::check(const std::string& file) const {
  if (!has_format_ || !has_version_) throw FormatError(file, 0, "no key \"format\" or \"version\"");
}

}  // namespace trimtab
