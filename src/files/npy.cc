// SPDX-License-Identifier: Apache-2.0
#include "trimtab/npy.h"

#include <utility>

#include "base/cat.h"
#include "base/file.h"
#include "files/npy_header.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

NpyHeader checked_header(std::span<const std::byte> image, const std::string& file) {
  NpyHeader header = parse_npy_header(image, file);
  const int64_t left = std::ssize(image) - header.data_offset;
  if (left != header.data_bytes) {
    throw FormatError(
        file, header.data_offset,
        cat("npy: the shape needs ", header.data_bytes, " bytes of data, the file has ", left));
  }
  return header;
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> image, const std::string& file) {
  NpyHeader header = checked_header(image, file);
  const auto data = image.subspan(header.data_offset);
  return {header.dtype, std::move(header.shape), {data.begin(), data.end()}};
}

NpyArray read_npy(const std::string& path) {
  std::vector<std::byte> image = read_file(path);
  NpyHeader header = checked_header(image, path);
  image.erase(image.begin(), image.begin() + header.data_offset);
  return {header.dtype, std::move(header.shape), std::move(image)};
}

void write_npy(const std::string& path, DType dtype, std::span<const int64_t> shape,
               std::span<const std::byte> data) {
  const std::string header = npy_header(dtype, shape);
  size_t want = bits(dtype) / 8;
  for (const int64_t n : shape) want *= n;
  if (data.size() != want) {
    throw InvalidArgument(cat("npy: the shape needs ", want, " bytes of data, got ", data.size()));
  }
  write_file(path, {std::as_bytes(std::span(header)), data});
}

}  // namespace trimtab
