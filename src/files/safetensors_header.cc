// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_header.h"

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/cat.h"

namespace trimtab {
namespace {

using nlohmann::json;

std::optional<DType> dtype_named(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(DType::kF4); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name(dtype) == text) return dtype;
  }
  return std::nullopt;
}

// Iterates over the header and keeps how far the parser came, so that errors can name the place.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

// Handles the events of the parser. It builds no tree: a header may have 100 MB, and the few things
// that it may hold do not nest.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(std::string_view header, const std::string& file) : header_(header), file_(file) {}

  SafeTensorsHeader read() {
    // The parser takes a NUL for the end and would ignore the rest.
    if (const size_t nul = header_.find('\0'); nul != header_.npos)
      throw error(nul, "a NUL byte in the header");
    furthest_ = header_.data();
    const char* const end = header_.data() + header_.size();
    json::sax_parse(CountingIterator(header_.data(), &furthest_), CountingIterator(end, &furthest_),
                    this);
    return std::move(result_);
  }

  bool start_object(size_t /*elements*/) override {
    if (in_ == In::kNothing) {
      in_ = In::kHeader;
    } else if (in_ == In::kHeader && key_ == "__metadata__") {
      in_ = In::kMetadata;
    } else if (in_ == In::kHeader) {
      in_ = In::kEntry;
      fields_.clear();
      entry_ = {};
      entry_.name = key_;
      entry_.position = in_file(key_position_);
    } else {
      throw unexpected("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    key_position_ = start_of_string();
    std::set<std::string>& keys = in_ == In::kHeader     ? names_
                                  : in_ == In::kMetadata ? metadata_keys_
                                                         : fields_;
    if (in_ == In::kEntry && text != "dtype" && text != "shape" && text != "data_offsets") {
      throw error(key_position_, cat(subject(), "unknown field '", text, "'"));
    }
    if (!keys.insert(text).second)
      throw error(key_position_, cat(subject(), "key '", text, "' comes twice"));
    key_ = text;
    return true;
  }

  bool string(string_t& text) override {
    if (in_ == In::kMetadata) {
      result_.metadata.emplace(key_, text);
    } else if (in_ == In::kEntry && key_ == "dtype") {
      const std::optional<DType> dtype = dtype_named(text);
      if (!dtype) throw error(start_of_string(), cat(subject(), "dtype '", text, "' is not known"));
      entry_.dtype = *dtype;
    } else {
      throw unexpected("a string");
    }
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (in_ != In::kEntry || key_ == "dtype") throw unexpected("an array");
    in_ = In::kNumbers;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (in_ != In::kNumbers) throw unexpected("a number");
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    in_ = In::kEntry;
    if (key_ == "shape") {
      entry_.shape = numbers_;
    } else if (numbers_.size() == 2) {
      entry_.begin = numbers_[0];
      entry_.end = numbers_[1];
    } else {
      throw error(key_position_,
                  cat(subject(), "data_offsets has ", numbers_.size(), " numbers in place of 2"));
    }
    return true;
  }

  bool end_object() override {
    if (in_ == In::kEntry) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field))
          throw FormatError(file_, entry_.position, cat(subject(), "has no ", field));
      }
      result_.entries.push_back(std::move(entry_));
    }
    in_ = In::kHeader;  // when this ends the header itself, only the end of the text can follow
    return true;
  }

  bool number_integer(number_integer_t value) override {
    throw unexpected(cat("the number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    throw unexpected(cat("the number ", text));
  }
  bool null() override { throw unexpected("null"); }
  bool boolean(bool) override { throw unexpected("a truth value"); }
  bool binary(binary_t&) override { throw unexpected("binary data"); }
  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    throw error(position(), cat(subject(), "the header is not valid JSON: ", problem.what()));
  }

 private:
  enum class In { kNothing, kHeader, kMetadata, kEntry, kNumbers };

  size_t position() const { return furthest_ - header_.data(); }
  static int64_t in_file(size_t position) { return kSafeTensorsLengthBytes + position; }

  // The place at which the string that the parser has just read begins. It is the nearest quote
  // before the end that is not escaped.
  size_t start_of_string() const {
    size_t at = position() - 1;
    bool escaped = true;
    while (escaped) {
      at = header_.rfind('"', at - 1);
      size_t backslashes = 0;
      while (header_[at - 1 - backslashes] == '\\') ++backslashes;
      escaped = backslashes % 2 == 1;
    }
    return at;
  }

  FormatError error(size_t position, const std::string& what) const {
    return {file_, in_file(position), what};
  }

  FormatError unexpected(const std::string& what) const {
    return error(position(), in_ == In::kNothing
                                 ? cat(what, " in place of an object")
                                 : cat(subject(), what, " can't be the value of '", key_, "'"));
  }

  std::string subject() const {
    if (in_ == In::kEntry || in_ == In::kNumbers) return cat("tensor '", entry_.name, "': ");
    return in_ == In::kMetadata ? "__metadata__: " : "";
  }

  std::string_view header_;
  const std::string& file_;
  const char* furthest_ = nullptr;
  SafeTensorsHeader result_;

  In in_ = In::kNothing;
  std::string key_;
  size_t key_position_ = 0;
  SafeTensorsEntry entry_;
  std::vector<uint64_t> numbers_;
  std::set<std::string> names_, metadata_keys_, fields_;  // the keys seen so far
};

}  // namespace

SafeTensorsHeader read_safetensors_header(std::string_view header, const std::string& file) {
  return HeaderReader(header, file).read();
}

}  // namespace trimtab
