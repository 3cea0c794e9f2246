// SPDX-License-Identifier: Apache-2.0
// The k best of a stream of values, best first, equal values in the order they came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace trimtab {

// Insertion into a sorted list: most values fail the one comparison with the k-th best, so a pass
// over E experts costs about E comparisons and k ln(E / k) insertions.
class TopK {
 public:
  // ids: [k], k >= 1; values: [k] scratch. Both belong to the caller.
  TopK(std::span<int32_t> ids, float* values) : ids_(ids), values_(values) {}

  // Offer in ascending order of the id, so that ties go to the lower one. value must not be NaN.
  void offer(int32_t id, float value) {
    if (size_ == ids_.size()) {
      if (value <= values_[size_ - 1]) return;
    } else {
      ++size_;
    }
    size_t at = size_ - 1;
    for (; at > 0 && value > values_[at - 1]; --at) {
      values_[at] = values_[at - 1];
      ids_[at] = ids_[at - 1];
    }
    values_[at] = value;
    ids_[at] = id;
  }

 private:
  std::span<int32_t> ids_;
  float* values_;
  size_t size_ = 0;
};

}  // namespace trimtab
