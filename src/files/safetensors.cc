// SPDX-License-Identifier: Apache-2.0
// Reads one safetensors image, which is 8 bytes of header length, a JSON header, and tensor data to
// the end. The checks are those of the reference implementation (huggingface/safetensors,
// safetensors/src/tensor.rs). They are stricter where it accepts things that the text of the format
// forbids: keys that come twice, and fields of an entry that have no meaning.
#include "trimtab/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/cat.h"
#include "files/safetensors_header.h"
#include "files/stand_in.h"

namespace trimtab {
namespace {

static_assert(std::endian::native == std::endian::little, "the data is used in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Returns the header after a check of its length against the image.
std::string_view header_of(std::span<const std::byte> image, const std::string& file) {
  refuse_stand_in({reinterpret_cast<const char*>(image.data()), image.size()}, file);
  if (image.size() < kSafeTensorsLengthBytes) {
    throw FormatError(
        file, 0,
        cat("has ", image.size(), " bytes, too few for the length of a safetensors header"));
  }
  uint64_t length = 0;
  std::memcpy(&length, image.data(), kSafeTensorsLengthBytes);
  if (length > kMaxHeaderBytes) {
    throw FormatError(
        file, 0, cat("a header of ", length, " bytes is above the limit of ", kMaxHeaderBytes));
  }
  if (length > image.size() - kSafeTensorsLengthBytes) {
    throw FormatError(
        file, 0,
        cat("a header of ", length, " bytes goes beyond the ", image.size(), " bytes of the file"));
  }
  const auto* text = reinterpret_cast<const char*>(image.data()) + kSafeTensorsLengthBytes;
  const std::string_view header(text, length);
  if (!header.starts_with('{'))
    throw FormatError(file, kSafeTensorsLengthBytes, "the header does not begin with '{'");
  return header;
}

std::string shape_text(const SafeTensorsEntry& entry) {
  std::string text = "shape [";
  for (size_t i = 0; i < entry.shape.size(); ++i) text += cat(i == 0 ? "" : ", ", entry.shape[i]);
  return cat(text, "] of ", name(entry.dtype));
}

// The bytes that the shape asks for. fail: called with the text of an error.
template <class Fail>
uint64_t bytes_of(const SafeTensorsEntry& entry, const Fail& fail) {
  uint64_t elements = 1;
  uint64_t total_bits = 0;
  bool overflow = false;
  for (const uint64_t size : entry.shape) {
    overflow |= std::cmp_greater(size, std::numeric_limits<int64_t>::max());
    overflow |= __builtin_mul_overflow(elements, size, &elements);
  }
  overflow |= __builtin_mul_overflow(elements, bits(entry.dtype), &total_bits);
  if (overflow) fail(cat(shape_text(entry), " overflows 64 bits"));
  if (total_bits % 8 != 0) fail(cat(shape_text(entry), " does not end at a whole byte"));
  return total_bits / 8;
}

// Throws when the tensors do not cover each byte of the data once.
void check_layout(std::vector<SafeTensorsEntry>& entries, uint64_t data_bytes,
                  uint64_t data_position, const std::string& file) {
  std::ranges::sort(entries, [](const SafeTensorsEntry& a, const SafeTensorsEntry& b) {
    return std::tie(a.begin, a.end, a.position) < std::tie(b.begin, b.end, b.position);
  });
  uint64_t covered = 0;
  for (const SafeTensorsEntry& entry : entries) {
    const auto fail = [&](const std::string& what) {
      const std::string offsets = cat("data_offsets [", entry.begin, ", ", entry.end, "]: ");
      throw FormatError(file, entry.position, cat("tensor '", entry.name, "', ", offsets, what));
    };
    if (entry.end < entry.begin) fail("they end before they begin");
    if (entry.end > data_bytes)
      fail(cat("they go beyond the ", data_bytes, " bytes of data in the file"));
    if (entry.begin < covered) fail(cat("they overlap the tensor before, which ends at ", covered));
    if (entry.begin > covered)
      fail(cat("they leave a hole after the tensor before, which ends at ", covered));
    const uint64_t bytes = bytes_of(entry, fail);
    if (bytes != entry.end - entry.begin) {
      fail(cat("they hold ", entry.end - entry.begin, " bytes, ", shape_text(entry), " has ",
               bytes));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    throw FormatError(file, data_position + covered,
                      cat(data_bytes - covered, " bytes of data belong to no tensor"));
  }
}

}  // namespace

std::map<std::string, TensorView, std::less<>> parse_safetensors(
    std::span<const std::byte> image, const std::string& file,
    std::map<std::string, std::string>* metadata) {
  const std::string_view text = header_of(image, file);
  const size_t data_position = kSafeTensorsLengthBytes + text.size();
  const std::span<const std::byte> data = image.subspan(data_position);
  SafeTensorsHeader header = read_safetensors_header(text, file);
  check_layout(header.entries, data.size(), data_position, file);

  std::map<std::string, TensorView, std::less<>> tensors;
  for (SafeTensorsEntry& entry : header.entries) {
    TensorView view{
        .dtype = entry.dtype, .shape = {entry.shape.begin(), entry.shape.end()}, .data = {}};
    view.data = data.subspan(entry.begin, entry.end - entry.begin);
    tensors.emplace(std::move(entry.name), std::move(view));
  }
  if (metadata != nullptr) metadata->merge(header.metadata);
  return tensors;
}

}  // namespace trimtab
