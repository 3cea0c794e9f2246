// SPDX-License-Identifier: Apache-2.0
#include "files/npy_header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "base/cat.h"
#include "files/stand_in.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxDimensions = 64;  // NumPy's own limit since 2.0

struct Descr {
  std::string_view text;
  DType dtype;
};
constexpr Descr kDescrs[] = {{"|b1", DType::kBool}, {"|u1", DType::kU8},  {"|i1", DType::kI8},
                             {"<i2", DType::kI16},  {"<u2", DType::kU16}, {"<f2", DType::kF16},
                             {"<i4", DType::kI32},  {"<u4", DType::kU32}, {"<f4", DType::kF32},
                             {"<i8", DType::kI64},  {"<u8", DType::kU64}, {"<f8", DType::kF64}};

// Returns the bytes of an array, or nothing when they do not fit int64 or a dimension is negative.
// A dimension of 0 empties the array but not the check, so that a product of the others is safe
// too.
std::optional<int64_t> array_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = bits(dtype) / 8;
  bool empty = false;
  for (const int64_t n : shape) {
    if (n < 0) return std::nullopt;
    empty |= n == 0;
    if (n != 0 && __builtin_mul_overflow(bytes, n, &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

// Reads the Python literal of a header, which is a dict of a string, a bool and a tuple of
// integers.
class HeaderReader {
 public:
  // text: the part of the file that begins at byte `start`.
  HeaderReader(std::string_view text, size_t start, const std::string& file)
      : text_(text), start_(start), file_(file) {}

  void read(NpyHeader& header) {
    bool descr = false;
    bool order = false;
    bool shape = false;
    expect('{');
    while (!accept('}')) {
      const size_t at = at_;
      const std::string_view key = string();
      bool* seen = key == "descr"           ? &descr
                   : key == "fortran_order" ? &order
                   : key == "shape"         ? &shape
                                            : nullptr;
      if (seen == nullptr) fail(cat("unknown key '", key, "'"), at);
      if (*seen) fail(cat("key '", key, "' comes twice"), at);
      *seen = true;
      expect(':');
      if (seen == &descr) header.dtype = dtype();
      if (seen == &order) c_order();
      if (seen == &shape) header.shape = tuple();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    for (const auto& [seen, key] :
         {std::pair(descr, "descr"), {order, "fortran_order"}, {shape, "shape"}}) {
      if (!seen) fail(cat("no key '", key, "'"), 0);
    }
    skip_space();
    if (at_ != text_.size()) fail("something follows the dictionary", at_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, size_t at) const {
    throw FormatError(file_, start_ + at, "npy header: " + what);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(cat("'", c, "' expected"), at_);
  }

  std::string_view string() {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
      fail("a string expected", at_);
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) fail("a string without an end", at_);
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  DType dtype() {
    skip_space();
    const size_t at = at_;
    if (at_ < text_.size() && text_[at_] == '[') fail("structured dtypes are not supported", at);
    const std::string_view text = string();
    const auto found = std::find_if(std::begin(kDescrs), std::end(kDescrs),
                                    [&](const Descr& d) { return d.text == text; });
    if (found == std::end(kDescrs)) {
      std::string known;
      for (const Descr& d : kDescrs) known += cat(known.empty() ? "" : ", ", d.text);
      fail(cat("dtype '", text, "' is not supported; supported are ", known), at);
    }
    return found->dtype;
  }

  void c_order() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with("True")) fail("Fortran order is not supported", at_);
    if (!rest.starts_with("False")) fail("True or False expected", at_);
    at_ += 5;
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      if (values.size() == kMaxDimensions)
        fail(cat("more than ", kMaxDimensions, " dimensions"), at_);
      values.push_back(integer());
      if (accept(',')) continue;
      if (values.size() == 1) fail("a comma expected: (n) is no tuple", at_);
      expect(')');
      break;
    }
    return values;
  }

  int64_t integer() {
    skip_space();
    const size_t at = at_;
    int64_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (value > (std::numeric_limits<int64_t>::max() - digit) / 10)
        fail("a dimension exceeds 64 bits", at);
      value = value * 10 + digit;
    }
    if (at_ == at) fail("a dimension of 0 or more expected", at);
    if (at_ - at > 1 && text_[at] == '0') fail("a dimension that starts with 0", at);
    return value;
  }

  std::string_view text_;
  size_t start_;
  const std::string& file_;
  size_t at_ = 0;
};

// The little-endian number of `bytes` bytes at `at`.
size_t little_endian(std::span<const std::byte> image, size_t at, size_t bytes) {
  size_t value = 0;
  while (bytes-- > 0) value = value << 8 | std::to_integer<size_t>(image[at + bytes]);
  return value;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> image, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
  refuse_stand_in(text, file);
  if (!text.starts_with(kMagic))
    throw FormatError(file, 0, "no .npy file: the magic string is missing");
  const size_t version_at = kMagic.size();
  if (text.size() < version_at + 2) throw FormatError(file, text.size(), "npy: cut off");
  const int major = std::to_integer<int>(image[version_at]);
  const int minor = std::to_integer<int>(image[version_at + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    throw FormatError(file, version_at, cat("npy format ", major, ".", minor, " is unknown"));
  }
  const size_t length_at = version_at + 2;
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t start = length_at + length_bytes;
  if (text.size() < start) throw FormatError(file, text.size(), "npy: cut off");
  const size_t length = little_endian(image, length_at, length_bytes);
  if (length > text.size() - start) {
    throw FormatError(
        file, length_at,
        cat("npy: a header of ", length, " bytes, but ", text.size() - start, " are left"));
  }
  NpyHeader header;
  HeaderReader(text.substr(start, length), start, file).read(header);
  header.data_offset = start + length;
  const std::optional<int64_t> bytes = array_bytes(header.dtype, header.shape);
  if (!bytes) throw FormatError(file, start, "npy: the shape exceeds 64 bits of bytes");
  header.data_bytes = *bytes;
  return header;
}

std::string npy_header(DType dtype, std::span<const int64_t> shape) {
  const auto found = std::find_if(std::begin(kDescrs), std::end(kDescrs),
                                  [&](const Descr& d) { return d.dtype == dtype; });
  if (found == std::end(kDescrs))
    throw InvalidArgument(cat("npy: NumPy has no dtype ", name(dtype)));
  std::string tuple;
  for (const int64_t n : shape) tuple += cat(n, ", ");
  if (shape.size() > 1) tuple.resize(tuple.size() - 2);
  if (shape.size() == 1) tuple.resize(tuple.size() - 1);
  if (shape.size() > kMaxDimensions || !array_bytes(dtype, shape)) {
    throw InvalidArgument(cat("npy: the shape (", tuple, ") is impossible"));
  }
  std::string text =
      cat("{'descr': '", found->text, "', 'fortran_order': False, 'shape': (", tuple, "), }");
  constexpr size_t kBefore = 10;  // magic string, version, 16-bit length
  const size_t total = (kBefore + text.size() + 1 + 63) / 64 * 64;
  text.resize(total - kBefore - 1, ' ');
  text += '\n';
  std::string header(kMagic);
  header +=
      {'\x01', '\x00', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace trimtab
