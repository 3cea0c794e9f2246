// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "experts/gemm_kernel.h"

namespace trimtab {
namespace {

struct Avx512 {
  using Reg = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kVecs = 4;     // also keeps enough sums in flight to hide the latency at m = 1
  static constexpr int kMaxRows = 6;  // 24 accumulators, 4 weights, 1 x: of 32 registers

  static Reg set(float x) { return _mm512_set1_ps(x); }
  static Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static Reg load(const uint16_t* p) {
    return widen(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  static Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Reg broadcast(const uint16_t* p) { return widen(_mm512_set1_epi16(static_cast<short>(*p))); }
  static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
  static void store(uint16_t* p, Reg x) {
    const __m512i u = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
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
  static Reg round(Reg x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Reg scale(Reg p, Reg n) { return _mm512_scalef_ps(p, n); }
  static Reg exp(Reg x) { return exp_polynomial<Avx512>(x); }

 private:
  // bf16 is the upper half of a float. Of a broadcast word the shift leaves one copy.
  static Reg widen(__m512i words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
};

}  // namespace

const GemmKernels kAvx512Kernels = make_kernels<Avx512>("avx512");

}  // namespace trimtab
