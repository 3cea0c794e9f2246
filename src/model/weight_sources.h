// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint by name, with the checks that every one of them needs.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "trimtab/checkpoint.h"

namespace trimtab {

// The tensor, of this shape and of f32, bf16 or f16. Throws FormatError naming file, tensor and offset: absent, another
// shape, another element type, or quantised (under this name or under one of those that quantisers give it).
const TensorView& find_weight(const SafeTensors& tensors, const std::string& name, std::span<const int64_t> shape);

inline MatrixSource find_matrix(const SafeTensors& tensors, const std::string& name, int64_t rows, int64_t cols) {
  return matrix_source(find_weight(tensors, name, std::array{rows, cols}));
}
inline VectorSource find_vector(const SafeTensors& tensors, const std::string& name, int64_t size) {
  return vector_source(find_weight(tensors, name, std::array{size}));
}

}  // namespace trimtab
