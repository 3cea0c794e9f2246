// SPDX-License-Identifier: Apache-2.0
// Random experts for tests of the runtimes.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "expert_table.h"

namespace trimtab::python {

inline constexpr int kTopK = 2;
// So large that teams share the products of a few tokens (kLeastSharedWork).
inline constexpr int64_t kHidden = 256, kIntermediate = 128;

inline std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1.0F, 1.0F);
  std::vector<float> all(count);
  for (float& value : all) value = values(random);
  return all;
}

// The experts [first, first + count) of those in gate_up and down.
inline ExpertArrays arrays_of(const std::vector<float>& gate_up, const std::vector<float>& down,
                              int first, int count) {
  ExpertArrays arrays;
  arrays.gate_up = {
      reinterpret_cast<const std::byte*>(gate_up.data() + first * 2 * kIntermediate * kHidden),
      DType::kF32,
      {count, 2 * kIntermediate, kHidden},
      {2 * kIntermediate * kHidden, kHidden, 1}};
  arrays.down = {reinterpret_cast<const std::byte*>(down.data() + first * kHidden * kIntermediate),
                 DType::kF32,
                 {count, kHidden, kIntermediate},
                 {kHidden * kIntermediate, kIntermediate, 1}};
  return arrays;
}

// The experts [first, first + count) of a layer of `experts`, in f32.
inline std::shared_ptr<const ExpertTable> make_table(int experts, int first, int count,
                                                     int threads = 1, ExpertParts parts = {}) {
  const auto gate_up = random_floats(experts * 2 * kIntermediate * kHidden, 1);
  const auto down = random_floats(experts * kHidden * kIntermediate, 2);
  return std::make_shared<const ExpertTable>(arrays_of(gate_up, down, first, count), Activation{},
                                             Scheme::kF32, threads, parts);
}

}  // namespace trimtab::python
