// SPDX-License-Identifier: Apache-2.0
#include "attention/kv_head.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "trimtab/tensor.h"

namespace trimtab {
namespace {

int64_t element_bytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : format == KvFormat::kBF16 ? 2 : 1;
}

// Copies a key and a value, element by element, to where the layout has them.
template <class T, class Convert>
void store_key(const KvLayout& layout, const float* k, int64_t position, T* keys,
               const Convert& convert) {
  T* const to = keys + layout.key(position);
  for (int64_t d = 0; d < layout.head_dim; ++d) to[d * KvLayout::kPanel] = convert(k[d]);
}
template <class T, class Convert>
void store_value(const KvLayout& layout, const float* v, int64_t position, T* values,
                 const Convert& convert) {
  for (int64_t d = 0; d < layout.head_dim; d += KvLayout::kPanel) {
    T* const to = values + layout.value(position, d / KvLayout::kPanel);
    const int64_t count = std::min<int64_t>(KvLayout::kPanel, layout.head_dim - d);
    for (int64_t i = 0; i < count; ++i) to[i] = convert(v[d + i]);
  }
}

// What an int8 code stands for; NaN where the vector is not finite.
float scale_of(const float* x, int64_t count) {
  float most = 0.0F;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    most = std::max(most, std::abs(x[i]));
  }
  return most / 127.0F;
}

// Codes of [-127, 127], by the inverse of a scale; 0 where there is none.
struct ToInt8 {
  float inverse;
  explicit ToInt8(float scale) : inverse(scale > 0.0F ? 1.0F / scale : 0.0F) {}
  int8_t operator()(float x) const {
    // A subnormal scale has an inverse that is infinite: such vectors are 0 for all purposes.
    if (!std::isfinite(inverse)) return 0;
    return static_cast<int8_t>(std::clamp(std::nearbyint(x * inverse), -127.0F, 127.0F));
  }
};

}  // namespace

size_t KvHead::bytes(KvLayout layout, KvFormat format) {
  const int64_t elements = layout.key_elements() + layout.value_elements();
  const int64_t scales =
      format == KvFormat::kI8 ? 2 * layout.positions * int64_t{sizeof(float)} : 0;
  const int64_t used = elements * element_bytes(format) + scales;
  return static_cast<size_t>((used + 63) / 64 * 64);
}

std::byte* KvHead::values() const {
  return memory_ + layout_.key_elements() * element_bytes(format_);
}
float* KvHead::key_scales() const {
  return reinterpret_cast<float*>(values() + layout_.value_elements() * element_bytes(format_));
}
float* KvHead::value_scales() const {
  return key_scales() + layout_.positions;
}

void KvHead::store(const float* key, const float* value, int64_t position) const {
  switch (format_) {
    case KvFormat::kF32: {
      const auto same = [](float x) { return x; };
      store_key(layout_, key, position, reinterpret_cast<float*>(memory_), same);
      return store_value(layout_, value, position, reinterpret_cast<float*>(values()), same);
    }
    case KvFormat::kBF16: {
      const auto rounded = [](float x) { return to_bf16(x).bits; };
      store_key(layout_, key, position, reinterpret_cast<uint16_t*>(memory_), rounded);
      return store_value(layout_, value, position, reinterpret_cast<uint16_t*>(values()), rounded);
    }
    case KvFormat::kI8: {
      const float of_key = scale_of(key, layout_.head_dim);
      const float of_value = scale_of(value, layout_.head_dim);
      key_scales()[position] = of_key;
      value_scales()[position] = of_value;
      store_key(layout_, key, position, reinterpret_cast<int8_t*>(memory_), ToInt8(of_key));
      return store_value(layout_, value, position, reinterpret_cast<int8_t*>(values()),
                         ToInt8(of_value));
    }
  }
}

void KvHead::give(QueryTile& tile) const {
  tile.format = format_;
  tile.keys = memory_;
  tile.values = values();
  tile.key_scales = format_ == KvFormat::kI8 ? key_scales() : nullptr;
  tile.value_scales = format_ == KvFormat::kI8 ? value_scales() : nullptr;
  tile.positions = layout_.positions;
  tile.head_dim = layout_.head_dim;
}

}  // namespace trimtab
