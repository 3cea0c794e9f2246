// SPDX-License-Identifier: Apache-2.0
#include "experts/avx512.h"

namespace trimtab {
namespace {

using V = Avx512;

// VDPBF16PS: two products of bf16 added to a float; subnormal inputs count as 0.
struct Bf16Dot : FloatSums<V, Bf16Dot> {
  using Weights = Ints512;
  static constexpr int kMaxRows = V::kMaxRows, kStepBytes = 4, kLoadBytes = 2 * 64;
  static Weights load_one(const std::byte* p) { return reinterpret_cast<Weights>(_mm512_loadu_si512(p)); }
  static Weights broadcast(const std::byte* x) {
    return reinterpret_cast<Weights>(_mm512_set1_epi32(*reinterpret_cast<const int*>(x)));
  }
  static __m512 dot(__m512 sum, Weights w, Weights x) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

// VPDPBUSD: four products of u8 and s8 added to an int.
struct Vnni : Avx512Ints {
  static constexpr int kMaxRows = V::kMaxRows;
  static Bytes load_bytes(const std::byte* p) { return reinterpret_cast<Bytes>(_mm512_loadu_si512(p)); }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const __m512i mask = _mm512_set1_epi8(0x0f), bytes = _mm512_loadu_si512(p);
    even = reinterpret_cast<Bytes>(_mm512_and_si512(bytes, mask));
    odd = reinterpret_cast<Bytes>(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask));
  }
  static Ints broadcast(const std::byte* x) { return set_int(*reinterpret_cast<const int*>(x)); }
  static Ints dot(Ints sum, Bytes w, Ints x) {
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(w),
                                                      reinterpret_cast<__m512i>(x)));
  }
};

// bf16 bit patterns of the magnitudes that e4m3 codes 0 .. 127 stand for, times 2^120 but for 0: low and high bytes.
struct Mx8Tables {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr Mx8Tables() {
    for (int code = 1; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {
        exponent = 1;
        for (; fraction < 8; fraction *= 2) --exponent;
        fraction -= 8;
      }
      const int bits = (exponent + 120 + 120) << 7 | fraction << 4;
      low[code] = static_cast<uint8_t>(bits & 0xff);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr Mx8Tables kMx8Tables;

// e4m3 weights, decoded in registers: the bytes of a bf16 from a table (VPERMI2B), and the block's scale taken off the
// exponent. The difference saturates at 0, so that 0 stays 0.
struct Mx8Dot : Bf16Dot {
  struct Scales {
    __m512i less[2];  // (247 - scale) << 7, for both bf16 of a column
  };
  static constexpr bool kGrouped = true;  // one sum for all groups
  static constexpr int kLoadBytes = 64;
  static Scales scales(const PanelTask& task, int64_t group) {
    Scales scales;
    for (int v = 0; v < 2; ++v) {
      const __m512i e8m0 = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(task.weight_scales + (group * 2 + v) * V::kLanes)));
      const __m512i less = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(247), e8m0), 7);
      scales.less[v] = _mm512_or_si512(less, _mm512_slli_epi32(less, 16));
    }
    return scales;
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[1][2]) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kMx8Tables.low), codes, _mm512_load_si512(kMx8Tables.low + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kMx8Tables.high), codes, _mm512_load_si512(kMx8Tables.high + 64));
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)),
                                                   0xf8);  // magnitude | (codes & 0x80)
    weights[0][0] = reinterpret_cast<Weights>(_mm512_subs_epu16(_mm512_unpacklo_epi8(low, high), scales.less[0]));
    weights[0][1] = reinterpret_cast<Weights>(_mm512_subs_epu16(_mm512_unpackhi_epi8(low, high), scales.less[1]));
  }
};

void unpack_mx8_by_table(const PanelTask& task, std::byte* out) noexcept {
  const std::byte* in = task.panel;
  Mx8Dot::Scales scales = {};
  for (int64_t i = 0; i < task.steps; ++i, in += Mx8Dot::kLoadBytes, out += 128) {
    if (i % task.group_steps == 0) scales = Mx8Dot::scales(task, i / task.group_steps);
    Mx8Dot::Weights weights[1][2];
    Mx8Dot::load(in, scales, weights);
    for (int v = 0; v < 2; ++v) _mm512_storeu_si512(out + 64 * v, reinterpret_cast<__m512i>(weights[0][v]));
  }
}

constexpr GemmKernels make() {
  GemmKernels kernels = make_kernels<V, Bf16Dot, Vnni>("avx512_bf16");
  kernels.linear[kMX8Product] = run_panel<V, Mx8Dot, false>;
  kernels.gated[kMX8Product] = run_panel<V, Mx8Dot, true>;
  kernels.unpack[kMX8Product] = unpack_mx8_by_table;
  return kernels;
}

}  // namespace

const GemmKernels kAvx512Bf16Kernels = make();

}  // namespace trimtab
