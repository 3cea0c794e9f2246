// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files for mapping: every tensor begins on a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trimtab/tensor.h"

namespace trimtab {

// The index of a packed model (trimtab/packed_model.h), which lists its shards. It is a name of its
// own, so that nobody takes them for the tensors of a checkpoint.
inline constexpr const char* kPackedModelIndex = "packed.safetensors.index.json";
// Tensors begin at multiples of this. No system that is supported has larger pages but for those of
// AArch64 kernels with 16 or 64 KiB, where tensors share a page at most.
inline constexpr size_t kFilePage = 4096;
// The bytes of whole pages that hold so many.
constexpr size_t whole_pages(size_t bytes) {
  return (bytes + kFilePage - 1) / kFilePage * kFilePage;
}

// A tensor to write.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // all its bytes, or less: zeros follow
};

// Writes the tensors in this order. The format allows no holes between tensors, so each must fill
// whole pages, but for the last one, or InvalidArgument is thrown. The file appears when it is
// complete (FileWriter). Throws Error when it can't be written.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace trimtab
