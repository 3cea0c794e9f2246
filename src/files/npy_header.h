// SPDX-License-Identifier: Apache-2.0
// Reads and writes the text in front of the data of a .npy file.
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
  int64_t data_offset = 0;  // the byte of the file at which the data begins
  int64_t data_bytes = 0;   // the bytes that dtype and shape ask for
};

// image: the file, or its begin up to the end of the header. Throws FormatError naming file and
// offset.
NpyHeader parse_npy_header(std::span<const std::byte> image, const std::string& file);

// Returns all bytes before the data, in format 1.0 and a multiple of 64 of them. Throws
// InvalidArgument for a dtype that NumPy lacks, a negative or overflowing shape, or more dimensions
// than NumPy has.
std::string npy_header(DType dtype, std::span<const int64_t> shape);

}  // namespace trimtab
