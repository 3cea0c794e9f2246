// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/avx2.h"

namespace trimtab {
namespace {

// With the loads of elements that caches hold.
struct KvLoads : Avx2 {
  static Reg load_bf16(const uint16_t* p) {
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  static Reg load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
};

}  // namespace

const AttentionKernels kAvx2Attention = make_attention<KvLoads>("avx2");

}  // namespace trimtab
