// SPDX-License-Identifier: Apache-2.0
#include "files/xz.h"

#include <algorithm>
#include <string_view>

#include "base/cat.h"
#include "trimtab/error.h"

#ifdef TRIMTAB_HAS_XZ
#include <lzma.h>
#endif

namespace trimtab {

bool is_xz(std::span<const std::byte> image) {
  constexpr std::string_view kMagic(
      "\xfd"
      "7zXZ\0",
      6);
  return image.size() >= kMagic.size() &&
         std::ranges::equal(std::as_bytes(std::span(kMagic)), image.first(kMagic.size()));
}

#ifdef TRIMTAB_HAS_XZ
namespace {

// Files that xz -9 makes need 65 MiB.
constexpr uint64_t kMemory = uint64_t{128} << 20;

class Decoder {
 public:
  explicit Decoder(const std::string& file) : file_(file) {
    if (lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED | LZMA_TELL_UNSUPPORTED_CHECK) !=
        LZMA_OK) {
      throw Error(cat("can't unpack ", file, ": out of memory"));
    }
  }
  ~Decoder() { lzma_end(&stream_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  std::vector<std::byte> unpack(std::span<const std::byte> image, size_t max_bytes) {
    stream_.next_in = reinterpret_cast<const uint8_t*>(image.data());
    stream_.avail_in = image.size();
    std::vector<std::byte> unpacked;
    std::vector<std::byte> piece(size_t{1} << 16);
    for (lzma_ret code = LZMA_OK; code != LZMA_STREAM_END;) {
      stream_.next_out = reinterpret_cast<uint8_t*>(piece.data());
      stream_.avail_out = piece.size();
      code = lzma_code(&stream_, LZMA_FINISH);
      if (code != LZMA_OK && code != LZMA_STREAM_END) fail(code);
      const size_t got = piece.size() - stream_.avail_out;
      if (got > max_bytes - unpacked.size()) {
        fail(cat("holds more than ", max_bytes,
                 " bytes; if that is right, unpack it first: xz -dc FILE"));
      }
      unpacked.insert(unpacked.end(), piece.begin(), piece.begin() + got);
    }
    return unpacked;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(file_, stream_.total_in, cat("xz: ", what));
  }
  [[noreturn]] void fail(lzma_ret code) const {
    switch (code) {
      case LZMA_BUF_ERROR:
        fail("the file ends too early");
      case LZMA_OPTIONS_ERROR:
      case LZMA_UNSUPPORTED_CHECK:
        fail("packed with a filter or checksum that is not known");
      case LZMA_MEMLIMIT_ERROR:
        fail(cat("unpacking needs more than ", kMemory >> 20, " MiB of memory"));
      case LZMA_MEM_ERROR:
        throw Error(cat("can't unpack ", file_, ": out of memory"));
      default:
        fail("damaged, or something other than xz follows");
    }
  }

  const std::string& file_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

std::vector<std::byte> unpack_xz(std::span<const std::byte> image, const std::string& file,
                                 size_t max_bytes) {
  return Decoder(file).unpack(image, max_bytes);
}
#else
std::vector<std::byte> unpack_xz(std::span<const std::byte> /*image*/, const std::string& file,
                                 size_t /*max_bytes*/) {
  throw FormatError(
      file, 0,
      "compressed with xz, which this build can't unpack (liblzma was not there); unpack it "
      "first: xz -dc FILE");
}
#endif

}  // namespace trimtab
