// SPDX-License-Identifier: Apache-2.0
#include "experts/neon.h"

namespace trimtab {
namespace {

// SDOT: four products of s8 and s8 added to an int. u4 weights are s8 as they are.
struct Sdot : NeonBytes {
  static Ints dot(Ints sum, Bytes w, int8x8_t x) {
    return {vdotq_lane_s32(sum.low, vreinterpretq_s8_u8(w.low), x, 0),
            vdotq_lane_s32(sum.high, vreinterpretq_s8_u8(w.high), x, 0)};
  }
};

// u8 weights become s8 by taking 128 off.
struct ShiftedSdot : Sdot {
  static Bytes load_bytes(const std::byte* p) {
    const Bytes bytes = NeonBytes::load_bytes(p);
    const uint8x16_t sign = vdupq_n_u8(0x80);
    return {veorq_u8(bytes.low, sign), veorq_u8(bytes.high, sign)};
  }
};

}  // namespace

const GemmKernels kNeonDotprodKernels =
    make_kernels<Neon, PairDot<Neon>, Sdot, Int8Dot<Neon, ShiftedSdot, 128>>("neon_dotprod");

}  // namespace trimtab
