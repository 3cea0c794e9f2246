// SPDX-License-Identifier: Apache-2.0
// The pass between a peer's two products. Compiled with the machine's own vectors, so that it costs
// peers little.
#pragma once

#include <cstdint>

namespace trimtab::bench {

// act[j] = silu(gate[j]) * up[j], rounded to bf16 (its bits), or kept in f32.
void silu_row(const float* gate, const float* up, int64_t count, uint16_t* act);
void silu_row(const float* gate, const float* up, int64_t count, float* act);

}  // namespace trimtab::bench
