// SPDX-License-Identifier: Apache-2.0
// Arrays of whole numbers in .npy files.
#pragma once

#include <cstdint>
#include <vector>

#include "recordings/content.h"

namespace trimtab {

struct NpyNumbers {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
  int64_t data_offset = 0;  // the byte at which the values begin
};

// want: the shape that the caller needs, in words. Throws FormatError for other numbers of
// dimensions, an array without values, and values that are no whole numbers from 0 up to 2^63.
NpyNumbers read_npy_numbers(const Content& content, const char* want, int min_dims, int max_dims);

}  // namespace trimtab
