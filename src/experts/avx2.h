// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C, for the files of its instruction sets.
#pragma once

#include <immintrin.h>

#include "experts/decoded_pairs.h"
#include "experts/dot_products.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = tile_rows(6);      // 12 sums, 2 weights, 1 x: of 16 registers
  static constexpr int kMaxPairRows = tile_rows(4);  // 8 sums, 4 weights, 2 x, 1 on the way
  static constexpr int kMaxDecodedRows = tile_rows(3);

  static Reg set(float x) { return _mm256_set1_ps(x); }
  static Reg broadcast(const float* p) { return set(*p); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256i load_pairs(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i set_pairs(const std::byte* p) { return _mm256_set1_epi32(load_step(p)); }
  static Reg low(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static Reg high(__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
  }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static void store(uint16_t* p, Reg x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i high_half = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high_half, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high_half, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg subtract(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg divide(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg round(Reg x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // In two steps, each a normal power of two: the exponent of the result may lie outside the normal
  // range.
  static Reg scale(Reg p, Reg n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(whole, half)));
  }
  static Reg exp(Reg x) { return exp_polynomial<Avx2>(x); }

  // For decoded_pairs.h.
  template <int kMask, int kBase>
  static Reg placed(__m256i words) {
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi32(kMask)),
                                               _mm256_set1_epi32(kBase)));
  }
  static __m256i left_half(__m256i words) { return _mm256_slli_epi32(words, 16); }
  static __m256i right_half(__m256i words) { return _mm256_srli_epi32(words, 16); }
  static __m256i zero() { return _mm256_setzero_si256(); }
  static __m256i low_nibbles(__m256i codes) {
    return _mm256_and_si256(codes, _mm256_set1_epi8(0x0f));
  }
  static __m256i high_nibbles(__m256i codes) { return low_nibbles(_mm256_srli_epi16(codes, 4)); }
  static __m256i look_up(const uint8_t (&table)[16], __m256i bytes) {
    const __m128i entries = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), bytes);
  }
  static __m256i interleave_low(__m256i low, __m256i high) {
    return _mm256_unpacklo_epi8(low, high);
  }
  static __m256i interleave_high(__m256i low, __m256i high) {
    return _mm256_unpackhi_epi8(low, high);
  }
  template <int kShift, int kMask>
  static Reg sign_and(__m256i words) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_srai_epi32(words, kShift), _mm256_set1_epi32(kMask)));
  }
  static Reg bytes_as_floats(const uint8_t* p) { return _mm256_cvtepi32_ps(bytes_as_ints(p)); }
  static Reg exponents_as_floats(const uint8_t* p) {
    const __m256i exponents = _mm256_slli_epi32(bytes_as_ints(p), 23);
    const __m256i least = _mm256_and_si256(_mm256_cmpeq_epi32(exponents, _mm256_setzero_si256()),
                                           _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(exponents, least));
  }
  static void store_pairs(std::byte* p, Reg low, Reg high) {
    const __m256i pairs =
        _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(low), 16), _mm256_castps_si256(high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
  }

 private:
  static Reg power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
  static __m256i bytes_as_ints(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
};

// g++ 12 spills arrays of __m256i, a type that may alias others, out of the inner loops: sums are
// plain vectors of int.
typedef int Ints256 __attribute__((vector_size(32)));

// What all ways to multiply bytes have in common.
struct Avx2Ints {
  using Ints = Ints256;
  static Ints set_int(int x) { return reinterpret_cast<Ints>(_mm256_set1_epi32(x)); }
  static Ints load_ints(const int32_t* p) {
    return ints(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Ints multiply(Ints a, Ints b) { return a * b; }
  static __m256 to_float(Ints x) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(x)); }

 protected:
  static Ints ints(__m256i x) { return reinterpret_cast<Ints>(x); }
  static __m256i load(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i low_nibbles(__m256i bytes) { return Avx2::low_nibbles(bytes); }
  static __m256i high_nibbles(__m256i bytes) { return Avx2::high_nibbles(bytes); }
};

}  // namespace
}  // namespace trimtab
