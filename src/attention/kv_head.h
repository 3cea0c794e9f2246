// SPDX-License-Identifier: Apache-2.0
// The memory of one head's keys and values, in any format: keys, values, and for kI8 the scale of
// each key and of each value behind them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention_kernels.h"
#include "attention/kv_layout.h"

namespace trimtab {

class KvHead {
 public:
  // memory: bytes(), 64-byte aligned; it outlives this view.
  KvHead(std::byte* memory, KvLayout layout, KvFormat format)
      : memory_(memory), layout_(layout), format_(format) {}

  // A multiple of 64.
  static size_t bytes(KvLayout layout, KvFormat format);

  // Puts the key and the value [head_dim] of a position into their places. For kI8 a key or a value
  // with a NaN or an infinity becomes NaN as a whole.
  void store(const float* key, const float* value, int64_t position) const;
  // Has the tile read this head.
  void give(QueryTile& tile) const;

 private:
  std::byte* values() const;
  float* key_scales() const;
  float* value_scales() const;

  std::byte* memory_;
  KvLayout layout_;
  KvFormat format_;
};

}  // namespace trimtab
