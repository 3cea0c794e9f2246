// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of .npy images. Whatever the bytes, parse_npy returns an array whose data is as
// long as its shape says, or throws FormatError with an offset inside the image.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "trimtab/error.h"
#include "trimtab/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const trimtab::NpyArray array =
        trimtab::parse_npy({reinterpret_cast<const std::byte*>(data), size}, "fuzz.npy");
    // Any order of multiplication is safe: the reader promises it.
    int64_t bytes = trimtab::bits(array.dtype) / 8;
    for (const int64_t n : array.shape) bytes *= n;
    if (bytes != std::ssize(array.data)) std::abort();
  } catch (const trimtab::FormatError& e) {
    if (e.offset() < 0 || static_cast<size_t>(e.offset()) > size) std::abort();
  }
  return 0;
}
