// SPDX-License-Identifier: Apache-2.0
// AArch64 with its Advanced SIMD, for the files of its instruction sets.
#pragma once

#include <arm_neon.h>

#include "experts/dot_products.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

// A register of gemm_kernel.h is two here: a tile of 6 rows x 16 columns loads 10 values for 24
// multiply-adds, one of 12 x 8 would load 14, and a single row has 4 sums on their way instead
// of 2.
template <class Half>
struct Two {
  Half low, high;
};

// One 4-byte step of a row, zero-extended: a plain load, and the multiply-adds take it by element.
// (LD1R would cost an arithmetic slot for each row.)
inline uint32x2_t step_lane(const std::byte* p) {
  return vcreate_u32(static_cast<uint32_t>(load_step(p)));
}

inline const uint8_t* as_bytes(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

struct Neon {
  using Reg = Two<float32x4_t>;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = tile_rows(6);      // 24 sums, 4 weights, 1 x: of 32 registers
  static constexpr int kMaxPairRows = tile_rows(5);  // 20 sums, 8 weights, 1 x, 1 mask

  // An element of a row.
  template <int kLane>
  struct Element {
    float32x2_t row;
  };
  static Element<0> broadcast(const float* p) {
    return {vreinterpret_f32_u32(step_lane(reinterpret_cast<const std::byte*>(p)))};
  }
  template <int kLane>
  static Reg multiply_add(Element<kLane> x, Reg b, Reg c) {
    return {vfmaq_lane_f32(c.low, b.low, x.row, kLane),
            vfmaq_lane_f32(c.high, b.high, x.row, kLane)};
  }

  static Reg set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Reg load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static Reg load_f16(const std::byte* p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(as_bytes(p)));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  static Two<uint32x4_t> load_pairs(const std::byte* p) {
    return {vreinterpretq_u32_u8(vld1q_u8(as_bytes(p))),
            vreinterpretq_u32_u8(vld1q_u8(as_bytes(p) + 16))};
  }
  static Reg low(Two<uint32x4_t> pairs) {
    return {vreinterpretq_f32_u32(vshlq_n_u32(pairs.low, 16)),
            vreinterpretq_f32_u32(vshlq_n_u32(pairs.high, 16))};
  }
  static Reg high(Two<uint32x4_t> pairs) {
    const uint32x4_t mask = vdupq_n_u32(0xffff0000U);
    return {vreinterpretq_f32_u32(vandq_u32(pairs.low, mask)),
            vreinterpretq_f32_u32(vandq_u32(pairs.high, mask))};
  }
  // Both bf16 of a row's step as floats.
  static float32x2_t set_pairs(const std::byte* p) {
    return vget_low_f32(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u32(step_lane(p)), 16)));
  }
  static Element<0> low(float32x2_t pair) { return {pair}; }
  static Element<1> high(float32x2_t pair) { return {pair}; }

  static void store(float* p, Reg x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
  }
  static void store(uint16_t* p, Reg x) {
    vst1q_u16(p, vcombine_u16(to_bf16(x.low), to_bf16(x.high)));
  }

  static Reg multiply_add(Reg a, Reg b, Reg c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }
  static Reg add(Reg a, Reg b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static Reg subtract(Reg a, Reg b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static Reg multiply(Reg a, Reg b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static Reg divide(Reg a, Reg b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static Reg min(Reg a, Reg b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
  static Reg max(Reg a, Reg b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
  static Reg round(Reg x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }
  static Reg scale(Reg p, Reg n) { return {scale(p.low, n.low), scale(p.high, n.high)}; }
  static Reg exp(Reg x) { return exp_polynomial<Neon>(x); }

 private:
  static uint16x4_t to_bf16(float32x4_t x) {
    const uint32x4_t u = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
  }
  // In two steps, each a normal power of two: the exponent of the result may lie outside the normal
  // range.
  static float32x4_t scale(float32x4_t p, float32x4_t n) {
    const int32x4_t whole = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(p, power(half)), power(vsubq_s32(whole, half)));
  }
  static float32x4_t power(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }
};

// What all ways to multiply bytes have in common.
struct NeonInts {
  using Ints = Two<int32x4_t>;
  static Ints set_int(int x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
  static Ints load_ints(const int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
  static Ints subtract(Ints a, Ints b) {
    return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
  }
  static Ints multiply(Ints a, Ints b) {
    return {vmulq_s32(a.low, b.low), vmulq_s32(a.high, b.high)};
  }
  static Neon::Reg to_float(Ints x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
};

// Bytes as they lie, for the instructions that multiply four of them at once.
struct NeonBytes : NeonInts {
  using Bytes = Two<uint8x16_t>;
  static constexpr int kMaxRows = Neon::kMaxRows;
  static Bytes load_bytes(const std::byte* p) {
    return {vld1q_u8(as_bytes(p)), vld1q_u8(as_bytes(p) + 16)};
  }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const Bytes both = load_bytes(p);
    const uint8x16_t mask = vdupq_n_u8(0x0f);
    even = {vandq_u8(both.low, mask), vandq_u8(both.high, mask)};
    odd = {vshrq_n_u8(both.low, 4), vshrq_n_u8(both.high, 4)};
  }
  static int8x8_t broadcast(const std::byte* x) { return vreinterpret_s8_u32(step_lane(x)); }
};

}  // namespace
}  // namespace trimtab
