// SPDX-License-Identifier: Apache-2.0
// Reads and writes NumPy's .npy files (format 1.0, 2.0 and 3.0, little endian, C order).
// The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trimtab/tensor.h"

namespace trimtab {

struct NpyArray {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;   // empty for a scalar
  std::vector<std::byte> data;  // C order
};

// Throws FormatError (with offset) for anything but a well-formed file of a supported dtype: bool,
// u1, i1, i2, u2, f2, i4, u4, f4, i8, u8, f8. Big endian and Fortran order are refused; so is a
// file that is longer or shorter than its shape says. No size overflows: the product of the
// non-zero dimensions and the element size fits int64.
NpyArray parse_npy(std::span<const std::byte> image, const std::string& file);
// Reads a file. Throws as parse_npy(), and Error when the file can't be read.
NpyArray read_npy(const std::string& path);
// Writes format 1.0 to a temporary file beside path that is then renamed, so a reader never sees
// half a file and a failed write leaves the old one. Throws InvalidArgument when the data does not
// fit dtype and shape, Error on I/O failure.
void write_npy(const std::string& path, DType dtype, std::span<const int64_t> shape,
               std::span<const std::byte> data);

}  // namespace trimtab
