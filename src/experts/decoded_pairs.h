// SPDX-License-Identifier: Apache-2.0
// Weights of 8 and 4 bits that become pairs of floats on their way to the registers, for
// instruction sets that multiply bf16 as floats (PairDot). V has, beside what PairDot uses:
//   kMaxDecodedRows      of a tile: with more, decoding would take the sums' registers
//   placed<mask, base>   (word & mask) | base of each word of 4 bytes, as a float
//   left_half,           the lower (upper) 2 bytes of each word in the place of the others, and 0
//   right_half
//   zero                 all bytes 0
//   low_nibbles,         of each byte, with 0 above them
//   high_nibbles
//   look_up              for each byte, which is below 16, an entry of a table
//   interleave_low,      the bytes of even (odd) groups of 8, each below that of another register
//   interleave_high
//   sign_and<shift, mask>  (word >> shift) & mask as a float, with copies of the sign moved in
//   bytes_as_floats, exponents_as_floats   kLanes numbers from 0 to 255; powers of two (e8m0)
//   store_pairs          two registers of floats whose lower halves are 0, as pairs of bf16
#pragma once

#include "experts/dot_products.h"

namespace trimtab {
namespace {

// The integer in kBits bits from kFirst on of each word, as the units of 2^(23 - kFirst), less
// `base`, which is that power and the zero point: a difference of small integers, so exact.
template <class V, int kFirst, int kBits, class Word>
typename V::Reg integer(Word words, typename V::Reg base) {
  constexpr int kMask = ((1 << kBits) - 1) << kFirst, kUnits = (127 + 23 - kFirst) << 23;
  return V::subtract(V::template placed<kMask, kUnits>(words), base);
}

// The zero points of one half of a group's columns and 2^(23 - kFirst).
template <class V, int kFirst>
typename V::Reg integer_base(const PanelTask& task, int64_t group, int half) {
  constexpr auto kUnits = static_cast<float>(1 << (23 - kFirst));
  if (task.zeros == nullptr) return V::set(kUnits + static_cast<float>(task.zero));
  const std::byte* zeros = task.zeros + (group / task.groups_of_scale * 2 + half) * V::kLanes;
  return V::add(V::set(kUnits), V::bytes_as_floats(reinterpret_cast<const uint8_t*>(zeros)));
}

// As unpack_int4_bf16().
template <class V>
struct Int4Pairs : Grouped<V, PairDot<V>> {
  using Reg = typename V::Reg;
  using Weights = typename PairDot<V>::Weights;
  struct Scales {
    Reg base[2][2];  // [steps][halves]
  };
  static constexpr int kMaxRows = V::kMaxDecodedRows, kLoadSteps = 2, kLoadBytes = 4 * V::kLanes,
                       kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) {
    return {{{integer_base<V, 0>(task, group, 0), integer_base<V, 4>(task, group, 1)},
             {integer_base<V, 8>(task, group, 0), integer_base<V, 12>(task, group, 1)}}};
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[2][2]) {
    const auto low = V::load_pairs(p), high = V::right_half(low);
    weights[0][0] = pair<0>(low, high, scales.base[0][0]);
    weights[0][1] = pair<4>(low, high, scales.base[0][1]);
    weights[1][0] = pair<8>(low, high, scales.base[1][0]);
    weights[1][1] = pair<12>(low, high, scales.base[1][1]);
  }

 private:
  template <int kFirst, class Word>
  static Weights pair(Word low, Word high, Reg base) {
    return {integer<V, kFirst, 4>(low, base), integer<V, kFirst, 4>(high, base)};
  }
};

// As unpack_int8_bf16().
template <class V>
struct Int8Pairs : Grouped<V, PairDot<V>> {
  using Reg = typename V::Reg;
  using Weights = typename PairDot<V>::Weights;
  struct Scales {
    Reg low[2], high[2];  // [halves]
  };
  static constexpr int kMaxRows = V::kMaxDecodedRows, kLoadBytes = 4 * V::kLanes,
                       kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) {
    return {{integer_base<V, 0>(task, group, 0), integer_base<V, 0>(task, group, 1)},
            {integer_base<V, 8>(task, group, 0), integer_base<V, 8>(task, group, 1)}};
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[1][2]) {
    const auto left = V::load_pairs(p);
    weights[0][0] = pair(left, scales.low[0], scales.high[0]);
    weights[0][1] = pair(V::right_half(left), scales.low[1], scales.high[1]);
  }

 private:
  template <class Word>
  static Weights pair(Word words, Reg low, Reg high) {
    return {integer<V, 0, 8>(words, low), integer<V, 8, 8>(words, high)};
  }
};

// Codes of e4m3 in the upper byte of 2 as floats (decode_to_bf16()).
template <class V, class Word>
typename PairDot<V>::Weights e4m3_pair(Word pairs) {
  const auto decoded = [](Word words) {
    constexpr auto kMask = static_cast<int>(0x87f00000U);
    return V::multiply(V::template sign_and<4, kMask>(words), V::set(0x1p120F));
  };
  return {decoded(V::left_half(pairs)), decoded(pairs)};
}

// The bytes of the 16 numbers of e2m1 as bf16. (Half a unit with its fields moved to the places of
// a float's is subnormal, and processors take long to multiply such floats.)
struct E2m1Bytes {
  alignas(16) uint8_t low[16] = {}, high[16] = {};
  constexpr E2m1Bytes() {
    constexpr int kMagnitudes[] = {0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0};
    for (int code = 0; code < 16; ++code) {
      const int bits = kMagnitudes[code % 8] | (code < 8 ? 0 : 0x8000);
      low[code] = static_cast<uint8_t>(bits & 0xff);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// As unpack_mx8().
template <class V>
struct Mx8Pairs : PairDot<V> {
  using Reg = typename V::Reg;
  using Weights = typename PairDot<V>::Weights;
  struct Scales {
    Reg of[2];  // [halves]
  };
  static constexpr bool kGrouped = true;
  static constexpr int kMaxRows = V::kMaxDecodedRows, kLoadBytes = 4 * V::kLanes,
                       kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) {
    const auto* e8m0 = reinterpret_cast<const uint8_t*>(task.weight_scales) + group * 2 * V::kLanes;
    return {{V::exponents_as_floats(e8m0), V::exponents_as_floats(e8m0 + V::kLanes)}};
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[1][2]) {
    const auto codes = V::load_pairs(p);
    weights[0][0] = scaled(e4m3_pair<V>(V::interleave_low(V::zero(), codes)), scales.of[0]);
    weights[0][1] = scaled(e4m3_pair<V>(V::interleave_high(V::zero(), codes)), scales.of[1]);
  }

 protected:
  static Weights scaled(Weights weights, Reg scale) {
    return {V::multiply(weights.low, scale), V::multiply(weights.high, scale)};
  }
};

// As unpack_mx4().
template <class V>
struct Mx4Pairs : Mx8Pairs<V> {
  using Weights = typename PairDot<V>::Weights;
  using Scales = typename Mx8Pairs<V>::Scales;
  static constexpr int kLoadSteps = 2;
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[2][2]) {
    const auto codes = V::load_pairs(p);
    decode(V::low_nibbles(codes), scales, weights[0]);
    decode(V::high_nibbles(codes), scales, weights[1]);
  }

 private:
  template <class Word>
  static void decode(Word codes, const Scales& scales, Weights (&step)[2]) {
    static constexpr E2m1Bytes kBytes;
    const Word low = V::look_up(kBytes.low, codes), high = V::look_up(kBytes.high, codes);
    const Word left = V::interleave_low(low, high), right = V::interleave_high(low, high);
    step[0] = Mx8Pairs<V>::scaled({V::low(left), V::high(left)}, scales.of[0]);
    step[1] = Mx8Pairs<V>::scaled({V::low(right), V::high(right)}, scales.of[1]);
  }
};

// As unpack_fp8().
template <class V>
struct Fp8Pairs : Grouped<V, PairDot<V>> {
  using Weights = typename PairDot<V>::Weights;
  static constexpr int kMaxRows = V::kMaxDecodedRows, kLoadBytes = 4 * V::kLanes,
                       kMinPrefetchRows = kComputeBoundRows / 2;
  static void load(const std::byte* p, NoScales, Weights (&weights)[1][2]) {
    const auto codes = V::load_pairs(p);
    weights[0][0] = e4m3_pair<V>(V::interleave_low(V::zero(), codes));
    weights[0][1] = e4m3_pair<V>(V::interleave_high(V::zero(), codes));
  }
};

// make_kernels() with weights that are decoded in registers where there are few rows.
template <class V, class I>
constexpr GemmKernels make_pair_kernels(const char* isa) {
  return with_decoded<V, PairDot<V>, Mx8Pairs<V>, Mx4Pairs<V>, Fp8Pairs<V>, Int4Pairs<V>,
                      Int8Pairs<V>>(make_kernels<V, PairDot<V>, I>(isa));
}

}  // namespace
}  // namespace trimtab
