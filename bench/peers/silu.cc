// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/silu.h"

#include <bit>
#include <cmath>

namespace trimtab::bench {

void silu_row(const float* gate, const float* up, int64_t count, float* act) {
  for (int64_t j = 0; j < count; ++j) act[j] = gate[j] / (1.0F + std::exp(-gate[j])) * up[j];
}

void silu_row(const float* gate, const float* up, int64_t count, uint16_t* act) {
  for (int64_t j = 0; j < count; ++j) {
    const float value = gate[j] / (1.0F + std::exp(-gate[j])) * up[j];
    const uint32_t word = std::bit_cast<uint32_t>(value);
    act[j] = static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
}

}  // namespace trimtab::bench
