// SPDX-License-Identifier: Apache-2.0
// Two loops that check_spills.py must tell apart: 12 sums fit into the 16 registers of AVX2, 20 do
// not.
#include <immintrin.h>

template <int kSums>
__attribute__((noinline)) void multiply_tile(const float* x, long count, float* out) {
  __m256 sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = _mm256_loadu_ps(out + 8 * i);
  for (; count > 0; --count, x += 8 + kSums) {
    const __m256 w = _mm256_loadu_ps(x);
#pragma GCC unroll 32
    for (int i = 0; i < kSums; ++i) sums[i] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[8 + i]), sums[i]);
  }
  for (int i = 0; i < kSums; ++i) _mm256_storeu_ps(out + 8 * i, sums[i]);
}

template void multiply_tile<12>(const float*, long, float*);
template void multiply_tile<20>(const float*, long, float*);
