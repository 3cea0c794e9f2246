// SPDX-License-Identifier: Apache-2.0
// The tensors of TensorRT-LLM's statistics: named "{iteration}_{layer}", of whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "trimtab/safetensors.h"

namespace trimtab {

using TrtllmKey = std::pair<int64_t, int>;  // iteration, layer

// The elements of one tensor.
class TrtllmTensor {
 public:
  TrtllmTensor(const std::string& name, TensorView view, const std::string& file, int64_t at)
      : name_(&name), view_(std::move(view)), file_(&file), at_(at) {}

  const std::vector<int64_t>& shape() const { return view_.shape; }
  int64_t dims() const { return std::ssize(view_.shape); }
  // Throws FormatError for a dtype without whole numbers.
  void check_whole_numbers() const;
  // The i-th element; -1 when it exceeds 63 bits.
  int64_t operator[](int64_t i) const;
  // Throws FormatError with the name of the tensor and the byte at which its data begins.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  const std::string* name_;
  TensorView view_;
  const std::string* file_;
  int64_t at_;
};

// The tensors of a file, which must outlive them. Throws FormatError for names that are no key or
// name the same, and for a file without tensors.
class TrtllmFile {
 public:
  TrtllmFile(std::span<const std::byte> image, const std::string& file);
  TrtllmFile(const TrtllmFile&) = delete;
  TrtllmFile& operator=(const TrtllmFile&) = delete;

  const std::map<TrtllmKey, TrtllmTensor>& tensors() const { return tensors_; }
  const std::string& name() const { return *name_; }

 private:
  const std::string* name_;
  std::map<std::string, TensorView, std::less<>> views_;
  std::map<TrtllmKey, TrtllmTensor> tensors_;
};

}  // namespace trimtab
