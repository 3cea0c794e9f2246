// SPDX-License-Identifier: Apache-2.0
// The text in front of the data of a .npy file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trimtab/tensor.h"

namespace trimtab {

struct NpyHeader {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  size_t data_offset = 0;  // bytes from the start of the file
  size_t data_bytes = 0;   // what dtype and shape say
};

// image: at least the magic string and the header. Throws FormatError naming file and offset.
NpyHeader parse_npy_header(std::span<const std::byte> image, const std::string& file);

// Everything that stands before the data: format 1.0, a multiple of 64 bytes. Throws
// InvalidArgument for a dtype that NumPy lacks, a negative or overflowing shape, or more dimensions
// than NumPy has.
std::string npy_header(DType dtype, std::span<const int64_t> shape);

}  // namespace trimtab
