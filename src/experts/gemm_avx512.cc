// SPDX-License-Identifier: Apache-2.0
#include "experts/avx512.h"

namespace trimtab {
namespace {

// Without VNNI: bytes 0 and 2 of each int, and 1 and 3, as pairs of words for VPMADDWD. (VPMADDUBSW
// would saturate.)
struct Words : Avx512Ints {
  struct Split {
    Ints even, odd;
  };
  using Bytes = Split;
  static constexpr int kMaxRows = tile_rows(11);  // 22 sums, 4 weights, 2 x, 2 products, a mask

  static Bytes load_bytes(const std::byte* p) { return split(_mm512_loadu_si512(p)); }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const __m512i mask = _mm512_set1_epi8(0x0f), bytes = _mm512_loadu_si512(p);
    even = split(_mm512_and_si512(bytes, mask));
    odd = split(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask));
  }
  static Split broadcast(const std::byte* x) {
    const __m512i bytes = _mm512_set1_epi32(load_step(x));
    return {reinterpret_cast<Ints>(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8)),
            reinterpret_cast<Ints>(_mm512_srai_epi16(bytes, 8))};
  }
  // Sums of integers may be reordered: g++ would compute all products of a loop before it adds
  // them, and spill most. The asm keeps it from that.
  static Ints dot(Ints sum, Bytes w, Split x) {
    sum += madd(w.even, x.even) + madd(w.odd, x.odd);
    asm("" : "+v"(sum));
    return sum;
  }

 private:
  static Split split(__m512i bytes) {
    return {reinterpret_cast<Ints>(_mm512_and_si512(bytes, _mm512_set1_epi16(0xff))),
            reinterpret_cast<Ints>(_mm512_srli_epi16(bytes, 8))};
  }
  static Ints madd(Ints a, Ints b) {
    return reinterpret_cast<Ints>(
        _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
  }
};

}  // namespace

const GemmKernels kAvx512Kernels = make_pair_kernels<Avx512, Words>("avx512");

}  // namespace trimtab
