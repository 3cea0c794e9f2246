// SPDX-License-Identifier: Apache-2.0
// Reads the JSON header of a safetensors image. It is not yet checked against the data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/tensor.h"

namespace trimtab {

// An image is 8 bytes of header length, the header, the data.
constexpr int64_t kSafeTensorsLengthBytes = 8;

// One tensor as the header describes it.
struct SafeTensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes in the data
  int64_t position = 0;         // the byte of the file at which the name stands, for errors
};

struct SafeTensorsHeader {
  std::vector<SafeTensorsEntry> entries;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

// header: the bytes between the length and the data. Throws FormatError, with the place in the
// file, when it is anything but
//   {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"key": "text", ...}}.
SafeTensorsHeader read_safetensors_header(std::string_view header, const std::string& file);

}  // namespace trimtab
