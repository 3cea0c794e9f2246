// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/avx512.h"

namespace trimtab {
namespace {

// With the loads of elements that caches hold.
struct KvLoads : Avx512 {
  static Reg load_bf16(const uint16_t* p) {
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
  static Reg load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
};

}  // namespace

const AttentionKernels kAvx512Attention = make_attention<KvLoads>("avx512");

}  // namespace trimtab
