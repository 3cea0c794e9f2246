// SPDX-License-Identifier: Apache-2.0
// Makes safetensors images and takes the texts of errors, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "base/cat.h"
#include "base/test_folder.h"
#include "trimtab/safetensors.h"

namespace trimtab {

// An image of this header as it stands, with `data_bytes` bytes of data 0, 1, 2, ...
inline std::string safetensors_image(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string image(sizeof length, '\0');
  std::memcpy(image.data(), &length, sizeof length);
  image += header;
  for (size_t i = 0; i < data_bytes; ++i) image += static_cast<char>(i);
  return image;
}

// An image of these tensors.
inline std::string safetensors_image(const std::map<std::string, TensorView>& tensors) {
  std::string header = "{", data;
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const int64_t size : tensor.shape) shape += cat(shape.empty() ? "" : ",", size);
    header += cat(header.size() == 1 ? "" : ",", '"', name, R"(":{"dtype":")",
                  trimtab::name(tensor.dtype), R"(","shape":[)", shape, R"(],"data_offsets":[)",
                  data.size(), ",", data.size() + tensor.data.size(), "]}");
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return safetensors_image(header + "}", 0) + data;
}

// Returns the text of the E that call() throws. The test fails when it throws nothing.
template <class E, class Call>
std::string error_text(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace trimtab
