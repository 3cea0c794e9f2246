// SPDX-License-Identifier: Apache-2.0
#include "experts/neon.h"

namespace trimtab {
namespace {

// Byte i of 8 outputs side by side, widened to words: SMLAL multiplies four of them by byte i of
// the row.
struct Words : NeonInts {
  struct Bytes {
    int16x8_t at[4];
  };
  static constexpr int kMaxRows =
      tile_rows(4);  // 16 sums, 8 weights, 4 of LD4, 1 x: of 32 registers

  static Bytes load_bytes(const std::byte* p) {
    const uint8x8x4_t bytes = vld4_u8(as_bytes(p));
    return {{widened(bytes.val[0]), widened(bytes.val[1]), widened(bytes.val[2]),
             widened(bytes.val[3])}};
  }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const uint8x8x4_t both = vld4_u8(as_bytes(p));
    const uint8x8_t mask = vdup_n_u8(0x0f);
    for (int i = 0; i < 4; ++i) {
      even.at[i] = widened(vand_u8(both.val[i], mask));
      odd.at[i] = widened(vshr_n_u8(both.val[i], 4));
    }
  }
  static int16x4_t broadcast(const std::byte* x) {
    return vget_low_s16(vmovl_s8(vreinterpret_s8_u32(step_lane(x))));
  }
  static Ints dot(Ints sum, const Bytes& w, int16x4_t x) {
    return add<3>(add<2>(add<1>(add<0>(sum, w, x), w, x), w, x), w, x);
  }

 private:
  static int16x8_t widened(uint8x8_t bytes) { return vreinterpretq_s16_u16(vmovl_u8(bytes)); }
  template <int i>
  static Ints add(Ints sum, const Bytes& w, int16x4_t x) {
    return {vmlal_lane_s16(sum.low, vget_low_s16(w.at[i]), x, i),
            vmlal_high_lane_s16(sum.high, w.at[i], x, i)};
  }
};

}  // namespace

const GemmKernels kNeonKernels = make_kernels<Neon, PairDot<Neon>, Words>("neon");

}  // namespace trimtab
