// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of safetensors images. Any bytes are either refused with a FormatError or are
// tensors that lie within them, each as large as its shape says.
#include <cstdint>
#include <cstdlib>

#include "trimtab/safetensors.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> image(reinterpret_cast<const std::byte*>(data), size);
  std::map<std::string, std::string> metadata;
  try {
    size_t bytes = 0;
    for (const auto& [name, tensor] : trimtab::parse_safetensors(image, "fuzz", &metadata)) {
      check(tensor.data.data() >= image.data() && tensor.data.size() <= size);
      check(tensor.data.data() + tensor.data.size() <= image.data() + size);
      size_t bits = static_cast<size_t>(trimtab::bits(tensor.dtype));
      for (const int64_t dimension : tensor.shape) {
        check(dimension >= 0);
        bits *= static_cast<size_t>(dimension);
      }
      check(bits == tensor.data.size() * 8);
      bytes += tensor.data.size();
    }
    check(bytes <= size);
  } catch (const trimtab::FormatError& error) {
    check(error.offset() >= 0 && static_cast<size_t>(error.offset()) <= size);
  }
  return 0;
}
