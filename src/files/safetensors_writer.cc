// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/file.h"
#include "files/safetensors_header.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// Bytes of the shape.
size_t bytes_of(const TensorToWrite& tensor) {
  size_t count = static_cast<size_t>(bits(tensor.dtype));
  for (const int64_t size : tensor.shape) count *= static_cast<size_t>(size);
  return count / 8;
}

std::string header_of(std::span<const TensorToWrite> tensors,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  size_t begin = 0;
  for (const TensorToWrite& tensor : tensors) {
    const size_t bytes = bytes_of(tensor);
    if (tensor.data.size() > bytes || begin % kFilePage != 0) {
      throw InvalidArgument(cat("tensor '", tensor.name, "' has ", tensor.data.size(), " bytes of ",
                                bytes, " and begins at ", begin));
    }
    header[tensor.name] = {{"dtype", name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, begin + bytes}}};
    begin += bytes;
  }
  std::string text = header.dump();
  // Blanks, which JSON allows at its end, so that the data begins on a page.
  text.resize(whole_pages(text.size() + kSafeTensorsLengthBytes) - kSafeTensorsLengthBytes, ' ');
  return text;
}

// Cuts what is written at multiples of a huge page: a file system that keeps its cache in large
// folios then has whole ones, which are mapped as one.
class AlignedWriter {
 public:
  explicit AlignedWriter(const std::string& path) : file_(path), block_(kBlock) {}

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), block_.size() - used_);
      std::memcpy(block_.data() + used_, bytes.data(), count);
      used_ += count;
      bytes = bytes.subspan(count);
      if (used_ == block_.size()) flush();
    }
  }
  void write_zeros(size_t count) {
    static constexpr std::array<std::byte, kFilePage> kZeros = {};
    for (; count > 0; count -= std::min(count, kZeros.size()))
      write(std::span(kZeros).first(std::min(count, kZeros.size())));
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  static constexpr size_t kBlock = size_t{16} << 20;

  void flush() {
    file_.write(std::span(block_).first(used_));
    used_ = 0;
  }

  FileWriter file_;
  std::vector<std::byte> block_;
  size_t used_ = 0;
};

}  // namespace

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const uint64_t length = header.size();
  AlignedWriter file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const TensorToWrite& tensor : tensors) {
    file.write(tensor.data);
    file.write_zeros(bytes_of(tensor) - tensor.data.size());
  }
  file.commit();
}

}  // namespace trimtab
