// SPDX-License-Identifier: Apache-2.0
// AVX-512 (F, BW, DQ, VL), for the files of its instruction sets.
#pragma once

#include <immintrin.h>

#include "experts/decoded_pairs.h"
#include "experts/dot_products.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kMaxRows = tile_rows(12);      // 24 sums, 2 weights, 1 x: of 32 registers
  static constexpr int kMaxPairRows = tile_rows(12);  // 24 sums, 4 weights, 2 x
  static constexpr int kMaxDecodedRows = tile_rows(8);

  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512i load_pairs(const std::byte* p) { return _mm512_loadu_si512(p); }
  static __m512i set_pairs(const std::byte* p) { return _mm512_set1_epi32(load_step(p)); }
  static Reg low(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static Reg high(__m512i pairs) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static void store(uint16_t* p, Reg x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i high_half = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high_half, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(high_half, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet)));
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg subtract(Reg a, Reg b) { return _mm512_sub_ps(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg divide(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm512_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static Reg round(Reg x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Reg scale(Reg p, Reg n) { return _mm512_scalef_ps(p, n); }
  static Reg exp(Reg x) { return exp_polynomial<Avx512>(x); }

  // For decoded_pairs.h.
  template <int kMask, int kBase>
  static Reg placed(__m512i words) {
    constexpr int kAndOr = 0xea;  // (word & mask) | base
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(words, _mm512_set1_epi32(kMask),
                                                         _mm512_set1_epi32(kBase), kAndOr));
  }
  static __m512i left_half(__m512i words) { return _mm512_slli_epi32(words, 16); }
  static __m512i right_half(__m512i words) { return _mm512_srli_epi32(words, 16); }
  static __m512i zero() { return _mm512_setzero_si512(); }
  static __m512i low_nibbles(__m512i codes) {
    return _mm512_and_si512(codes, _mm512_set1_epi8(0x0f));
  }
  static __m512i high_nibbles(__m512i codes) { return low_nibbles(_mm512_srli_epi16(codes, 4)); }
  static __m512i look_up(const uint8_t (&table)[16], __m512i bytes) {
    const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), bytes);
  }
  static __m512i interleave_low(__m512i low, __m512i high) {
    return _mm512_unpacklo_epi8(low, high);
  }
  static __m512i interleave_high(__m512i low, __m512i high) {
    return _mm512_unpackhi_epi8(low, high);
  }
  template <int kShift, int kMask>
  static Reg sign_and(__m512i words) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_srai_epi32(words, kShift), _mm512_set1_epi32(kMask)));
  }
  static Reg bytes_as_floats(const uint8_t* p) { return _mm512_cvtepi32_ps(bytes_as_ints(p)); }
  static Reg exponents_as_floats(const uint8_t* p) {
    const __m512i exponents = _mm512_slli_epi32(bytes_as_ints(p), 23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(
        exponents, _mm512_testn_epi32_mask(exponents, exponents), _mm512_set1_epi32(0x00400000)));
  }
  static void store_pairs(std::byte* p, Reg low, Reg high) {
    const __m512i pairs =
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high));
    _mm512_storeu_si512(p, pairs);
  }

 private:
  static __m512i bytes_as_ints(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

// g++ 12 spills arrays of __m512i, a type that may alias others, out of the inner loops: sums are
// plain vectors of int.
typedef int Ints512 __attribute__((vector_size(64)));

// What all ways to multiply bytes have in common.
struct Avx512Ints {
  using Ints = Ints512;
  using Bytes = Ints512;
  static Ints set_int(int x) { return reinterpret_cast<Ints>(_mm512_set1_epi32(x)); }
  static Ints load_ints(const int32_t* p) { return reinterpret_cast<Ints>(_mm512_loadu_si512(p)); }
  static Ints multiply(Ints a, Ints b) { return a * b; }
  static __m512 to_float(Ints x) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)); }
};

}  // namespace
}  // namespace trimtab
