// SPDX-License-Identifier: Apache-2.0
#include "experts/avx2.h"

namespace trimtab {
namespace {

// Bytes 0 and 2 of each int, and 1 and 3, as pairs of words for VPMADDWD. (VPMADDUBSW would
// saturate.)
struct Words : Avx2Ints {
  struct Split {
    Ints even, odd;
  };
  using Bytes = Split;
  static constexpr int kMaxRows =
      tile_rows(4);  // 8 sums, 4 weights, 2 x, 1 on the way: of 16 registers

  static Bytes load_bytes(const std::byte* p) { return split(load(p)); }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    even = split(low_nibbles(load(p)));
    odd = split(high_nibbles(load(p)));
  }
  static Split broadcast(const std::byte* x) {
    const __m256i bytes = _mm256_set1_epi32(load_step(x));
    return {ints(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8)),
            ints(_mm256_srai_epi16(bytes, 8))};
  }
  // Sums of integers may be reordered: g++ would compute all products of a loop before it adds
  // them, and spill most. The asm keeps it from that.
  static Ints dot(Ints sum, Bytes w, Split x) {
    sum += madd(w.even, x.even) + madd(w.odd, x.odd);
    asm("" : "+x"(sum));
    return sum;
  }

 private:
  static Split split(__m256i bytes) {
    return {ints(_mm256_and_si256(bytes, _mm256_set1_epi16(0xff))),
            ints(_mm256_srli_epi16(bytes, 8))};
  }
  static Ints madd(Ints a, Ints b) {
    return ints(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
  }
};

}  // namespace

const GemmKernels kAvx2Kernels = make_pair_kernels<Avx2, Words>("avx2");

}  // namespace trimtab
