// SPDX-License-Identifier: Apache-2.0
// Where the keys and values of one head stand in a cache, so that attention reads both in the order
// in which it computes. Positions are cut into blocks of kBlock. A block's keys are panels of
// kPanel positions, [head_dim, kPanel] each: one load brings the same element of many keys. Its
// values are panels of kPanel elements, [positions of the block, kPanel] each. The last block is as
// high as the capacity needs. Offsets are in elements, whatever their type.
#pragma once

#include <cstdint>

namespace trimtab {

struct KvLayout {
  static constexpr int kPanel = 32;
  static constexpr int kBlock = 256;

  int64_t positions = 0;  // a multiple of kPanel
  int64_t head_dim = 0;

  static constexpr int64_t rounded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }
  static constexpr KvLayout of(int64_t capacity, int64_t head_dim) {
    return {rounded(capacity), head_dim};
  }

  int64_t padded_dim() const { return rounded(head_dim); }
  int64_t key_elements() const { return positions * head_dim; }
  int64_t value_elements() const { return positions * padded_dim(); }
  // Positions of the block that begins at `begin`, a multiple of kBlock.
  int64_t height(int64_t begin) const {
    return positions - begin < kBlock ? positions - begin : kBlock;
  }

  // The first element of the key at a position; the others follow kPanel apart.
  int64_t key(int64_t position) const {
    return position / kPanel * kPanel * head_dim + position % kPanel;
  }
  // The elements [panel * kPanel, ..) of the value at a position, side by side.
  int64_t value(int64_t position, int64_t panel) const {
    const int64_t begin = position / kBlock * kBlock;
    return begin * padded_dim() + (panel * height(begin) + position - begin) * kPanel;
  }
};

}  // namespace trimtab
