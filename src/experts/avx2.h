// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C, for the files of its instruction sets.
#pragma once

#include <immintrin.h>

#include "experts/dot_products.h"
#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = tile_rows(6);      // 12 sums, 2 weights, 1 x: of 16 registers
  static constexpr int kMaxPairRows = tile_rows(4);  // 8 sums, 4 weights, 2 x, 1 on the way

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

 private:
  static Reg power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
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
  static __m256i low_nibbles(__m256i bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f));
  }
  static __m256i high_nibbles(__m256i bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }
};

}  // namespace
}  // namespace trimtab
