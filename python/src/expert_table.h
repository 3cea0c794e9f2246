// SPDX-License-Identifier: Apache-2.0
// The experts of one layer, packed for the kernels from arrays as Hugging Face modules hold them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trimtab/experts.h"

namespace trimtab::python {

// A view of the weights of all experts in one array: 3 dimensions, any strides (in elements).
struct StackedMatrices {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t shape[3] = {}, strides[3] = {};
};
struct StackedVectors {
  const std::byte* data = nullptr;  // null: no biases
  DType dtype = DType::kF32;
  int64_t shape[2] = {}, strides[2] = {};
};

struct ExpertArrays {
  StackedMatrices gate_up;  // [experts, 2 * intermediate, hidden]
  StackedMatrices down;     // [experts, hidden, intermediate]
  StackedVectors gate_up_bias, down_bias;
  // gate_up is [experts, hidden, 2 * intermediate], down [experts, intermediate, hidden].
  bool transposed = false;
  bool interleaved = false;  // gate and up take turns, instead of all of gate, then all of up
};

// The parts that each expert is cut into (part_of()), and the ones that are wanted.
struct ExpertParts {
  int parts = 1;
  int part = -1;  // -1: all of them
};

class ExpertTable {
 public:
  // Packs with that many threads, each a block of experts. Throws InvalidArgument for shapes that
  // do not fit, and as part_of() and Mlp's constructor.
  ExpertTable(const ExpertArrays& arrays, Activation activation, WeightFormat format, int threads,
              ExpertParts parts = {});

  // [num_experts()] Part `part` of each expert; whole experts are their part 0. Throws
  // InvalidArgument for a part that is not here.
  std::span<const std::shared_ptr<const Mlp>> experts(int part = 0) const;
  int num_experts() const { return num_experts_; }
  const ExpertParts& parts() const { return parts_; }
  int64_t hidden() const { return experts_.front()->hidden(); }
  int64_t intermediate() const { return parts_.parts * experts_.front()->intermediate(); }
  WeightFormat format() const { return experts_.front()->weight_format(); }
  size_t bytes() const;

 private:
  ExpertParts parts_;
  int num_experts_;
  std::vector<std::shared_ptr<const Mlp>> experts_;  // [parts that are here][num_experts_]
};

}  // namespace trimtab::python
