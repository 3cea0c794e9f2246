// SPDX-License-Identifier: Apache-2.0
#include "experts/neon.h"

namespace trimtab {
namespace {

// BFDOT: two products of bf16 added to a float, with its own rounding (to odd between the steps);
// subnormal numbers count as 0.
struct Bf16Dot : FloatSums<Neon, Bf16Dot> {
  using Weights = Two<bfloat16x8_t>;
  static constexpr int kMaxRows = Neon::kMaxRows, kStepBytes = 4, kLoadBytes = 2 * 32;
  static Weights load_one(const std::byte* p) {
    return {vreinterpretq_bf16_u8(vld1q_u8(as_bytes(p))),
            vreinterpretq_bf16_u8(vld1q_u8(as_bytes(p) + 16))};
  }
  static bfloat16x4_t broadcast(const std::byte* x) { return vreinterpret_bf16_u32(step_lane(x)); }
  static Neon::Reg dot(Neon::Reg sum, Weights w, bfloat16x4_t x) {
    return {vbfdotq_lane_f32(sum.low, w.low, x, 0), vbfdotq_lane_f32(sum.high, w.high, x, 0)};
  }
};

// USDOT: four products of u8 and s8 added to an int.
struct Usdot : NeonBytes {
  static Ints dot(Ints sum, Bytes w, int8x8_t x) {
    return {vusdotq_lane_s32(sum.low, w.low, x, 0), vusdotq_lane_s32(sum.high, w.high, x, 0)};
  }
};

}  // namespace

const GemmKernels kNeonBf16Kernels = make_kernels<Neon, Bf16Dot, Usdot>("neon_bf16");

}  // namespace trimtab
