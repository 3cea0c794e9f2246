// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "bench/machine/dot_loop.h"

namespace trimtab::bench {
namespace {

struct F32 {
  using Reg = __m256;
  static constexpr int kOps = 16;
  static Reg load(const std::byte* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
  static void store(std::byte* p, Reg x) { _mm256_store_ps(reinterpret_cast<float*>(p), x); }
  static Reg zero() { return _mm256_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg dot(Reg sum, Reg x) { return _mm256_fmadd_ps(x, x, sum); }
};

struct I8 {
  using Reg = __m256i;
  static constexpr int kOps = 64;
  static Reg load(const std::byte* p) { return _mm256_load_si256(reinterpret_cast<const Reg*>(p)); }
  static void store(std::byte* p, Reg x) { _mm256_store_si256(reinterpret_cast<Reg*>(p), x); }
  static Reg zero() { return _mm256_setzero_si256(); }
  static Reg add(Reg a, Reg b) { return _mm256_add_epi32(a, b); }
  static Reg mix(Reg a, Reg b) { return _mm256_xor_si256(a, b); }
  // The sum stands in for a row of x: a product that does not change would be taken out of the
  // loop.
  static Reg dot(Reg sum, Reg x) {
    return _mm256_add_epi32(sum,
                            _mm256_madd_epi16(_mm256_maddubs_epi16(sum, x), _mm256_set1_epi16(1)));
  }
};

}  // namespace

const IsaLoops kAvx2Loops = {
    "avx2", {make_dots<F32>("VFMADD ymm"), {}, make_dots<I8>("VPMADDUBSW ymm")}, run_reads<I8>};

}  // namespace trimtab::bench
