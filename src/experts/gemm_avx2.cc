// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kVecs = 2;
  static constexpr int kMaxRows = 6;  // 12 accumulators, 2 weights, 1 x: of 16 registers

  static Reg set(float x) { return _mm256_set1_ps(x); }
  static Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static Reg load(const uint16_t* p) {
    return widen(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Reg broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static Reg broadcast(const uint16_t* p) { return widen(_mm256_set1_epi16(static_cast<short>(*p))); }
  static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
  static void store(uint16_t* p, Reg x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static Reg multiply_add(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg subtract(Reg a, Reg b) { return _mm256_sub_ps(a, b); }
  static Reg multiply(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg divide(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg min(Reg a, Reg b) { return _mm256_min_ps(a, b); }
  static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static Reg round(Reg x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // In two steps, each a normal power of two: the exponent of the result may lie outside the normal range.
  static Reg scale(Reg p, Reg n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(whole, half)));
  }
  static Reg exp(Reg x) { return exp_polynomial<Avx2>(x); }

 private:
  // bf16 is the upper half of a float. Of a broadcast word the shift leaves one copy.
  static Reg widen(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
  static Reg power(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace

const GemmKernels kAvx2Kernels = make_kernels<Avx2>("avx2");

}  // namespace trimtab
