// SPDX-License-Identifier: Apache-2.0
#include "experts/avx512.h"

namespace trimtab {
namespace {

using V = Avx512;

// The empty asm keeps loads in the order of their addresses: g++ mixes those of several steps, and
// that costs a row on its own 6 % of what the memory can stream.
inline Ints512 load_in_order(const std::byte* p) {
  auto loaded = reinterpret_cast<Ints512>(_mm512_loadu_si512(p));
  asm("" : "+v"(loaded));
  return loaded;
}

// VDPBF16PS: two products of bf16 added to a float; subnormal inputs count as 0.
struct Bf16Dot : FloatSums<V, Bf16Dot> {
  using Weights = Ints512;
  static constexpr int kMaxRows = V::kMaxRows, kStepBytes = 4, kLoadBytes = 2 * 64;
  static Weights load_one(const std::byte* p) { return load_in_order(p); }
  static void store(std::byte* p, Weights weights) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(weights));
  }
  static Weights broadcast(const std::byte* x) {
    return reinterpret_cast<Weights>(_mm512_set1_epi32(load_step(x)));
  }
  static __m512 dot(__m512 sum, Weights w, Weights x) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
  }
};

// VPDPBUSD: four products of u8 and s8 added to an int.
struct Vnni : Avx512Ints {
  static constexpr int kMaxRows = V::kMaxRows;
  static Bytes load_bytes(const std::byte* p) { return load_in_order(p); }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const __m512i mask = _mm512_set1_epi8(0x0f), bytes = _mm512_loadu_si512(p);
    even = reinterpret_cast<Bytes>(_mm512_and_si512(bytes, mask));
    odd = reinterpret_cast<Bytes>(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask));
  }
  static Ints broadcast(const std::byte* x) { return set_int(load_step(x)); }
  static Ints dot(Ints sum, Bytes w, Ints x) {
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                      reinterpret_cast<__m512i>(w),
                                                      reinterpret_cast<__m512i>(x)));
  }
};

// bf16 bit patterns of the magnitudes that e4m3 codes 0 .. 127 stand for, times 2^kTimes but for 0:
// low and high bytes.
template <int kTimes>
struct E4M3Tables {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
  constexpr E4M3Tables() {
    for (int code = 1; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;
      if (exponent == 0) {
        exponent = 1;
        for (; fraction < 8; fraction *= 2) --exponent;
        fraction -= 8;
      }
      const int bits = (exponent + 120 + kTimes) << 7 | fraction << 4;
      low[code] = static_cast<uint8_t>(bits & 0xff);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// A step of bytes becomes two registers of bf16.
struct Halves {
  __m512i left, right;
};
inline Halves interleave(__m512i low, __m512i high) {
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

// e4m3 by table (VPERMI2B).
template <int kTimes>
inline Halves decode_e4m3(__m512i codes) {
  static constexpr E4M3Tables<kTimes> kTables;
  const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.low), codes,
                                               _mm512_load_si512(kTables.low + 64));
  const __m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(kTables.high), codes,
                                                     _mm512_load_si512(kTables.high + 64));
  constexpr int kOrAnd = 0xf8;  // magnitude | (codes & sign)
  return interleave(low, _mm512_ternarylogic_epi32(
                             magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrAnd));
}

// e2m1 by table (VPSHUFB), times 2^120 but for 0.
inline Halves decode_e2m1(__m512i codes) {
  constexpr int kHalf = (126 + 120) << 7;  // 0.5; then 1, 1.5, 2, 3, 4, 6
  constexpr int kWords[8] = {0,           kHalf,       kHalf + 128, kHalf + 192,
                             kHalf + 256, kHalf + 320, kHalf + 384, kHalf + 448};
  struct Tables {
    alignas(16) uint8_t low[16] = {}, high[16] = {};
    constexpr Tables(const int (&words)[8]) {
      for (int code = 0; code < 16; ++code) {
        low[code] = static_cast<uint8_t>(words[code & 7] & 0xff);
        high[code] = static_cast<uint8_t>(words[code & 7] >> 8 | (code & 8) << 4);
      }
    }
  };
  static constexpr Tables kTables(kWords);
  const auto table = [](const uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  };
  return interleave(_mm512_shuffle_epi8(table(kTables.low), codes),
                    _mm512_shuffle_epi8(table(kTables.high), codes));
}

// What the e8m0 scales of a group take off the exponents: (247 - scale) << 7, for both bf16 of a
// column. The difference saturates at 0, so that 0 stays 0.
struct MxScales {
  __m512i less[2];

  static MxScales read(const PanelTask& task, int64_t group) {
    MxScales scales;
    for (int v = 0; v < 2; ++v) {
      const __m512i e8m0 = _mm512_cvtepu8_epi32(_mm_loadu_si128(
          reinterpret_cast<const __m128i*>(task.weight_scales + (group * 2 + v) * V::kLanes)));
      const __m512i less = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(247), e8m0), 7);
      scales.less[v] = _mm512_or_si512(less, _mm512_slli_epi32(less, 16));
    }
    return scales;
  }
  void apply(const Halves& halves, Ints512 (&weights)[2]) const {
    weights[0] = reinterpret_cast<Ints512>(_mm512_subs_epu16(halves.left, less[0]));
    weights[1] = reinterpret_cast<Ints512>(_mm512_subs_epu16(halves.right, less[1]));
  }
};

// Weights that are decoded in registers, one sum for all groups.
struct Mx8Dot : Bf16Dot {
  using Scales = MxScales;
  static constexpr bool kGrouped = true;
  static constexpr int kLoadBytes = 64, kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) { return MxScales::read(task, group); }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[1][2]) {
    scales.apply(decode_e4m3<120>(_mm512_loadu_si512(p)), weights[0]);
  }
};

struct Mx4Dot : Mx8Dot {
  static constexpr int kLoadSteps = 2;
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[2][2]) {
    const __m512i mask = _mm512_set1_epi8(0x0f), codes = _mm512_loadu_si512(p);
    scales.apply(decode_e2m1(_mm512_and_si512(codes, mask)), weights[0]);
    scales.apply(decode_e2m1(_mm512_and_si512(_mm512_srli_epi16(codes, 4), mask)), weights[1]);
  }
};

struct Fp8Dot : Grouped<V, Bf16Dot> {
  static constexpr int kLoadBytes = 64, kMinPrefetchRows = kComputeBoundRows / 2;
  static void load(const std::byte* p, NoScales, Weights (&weights)[1][2]) {
    const Halves halves = decode_e4m3<0>(_mm512_loadu_si512(p));
    weights[0][0] = reinterpret_cast<Weights>(halves.left);
    weights[0][1] = reinterpret_cast<Weights>(halves.right);
  }
};

// Sixteen zero points of a group, those of one half of its columns, as ints.
inline __m512i zero_points(const PanelTask& task, int64_t group, int half) {
  if (task.zeros == nullptr) return _mm512_set1_epi32(task.zero);
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(
      task.zeros + (group / task.groups_of_scale * 2 + half) * V::kLanes)));
}

// The zero points and the tables need registers too: with more rows sums would be spilled.
constexpr int kIntegerRows = tile_rows(10);

// VDPBF16PS takes 6 cycles, and a row alone has two sums: weights of 4 bits would wait for them.
// (Those of 8 bits wait for the memory, which several streams slow down by a sixth.)
constexpr int kDecodedSums = 4;

// Small integers as bf16.
struct IntegerTable {
  alignas(64) uint16_t words[32] = {};
  // Entry i: i & mask, where that has 5 bits as a signed number, plus shift.
  constexpr IntegerTable(int mask, int shift) {
    for (int i = 0; i < 32; ++i) {
      const int code = i & mask;
      const int value = (code < 16 ? code : code - 32) + shift;
      const int magnitude = value < 0 ? -value : value;
      if (magnitude == 0) continue;
      int exponent = 0;
      while (2 << exponent <= magnitude) ++exponent;
      const int bits = (127 + exponent) << 7 | (magnitude << 7 >> exponent & 0x7f);
      words[i] = static_cast<uint16_t>(value < 0 ? bits | 0x8000 : bits);
    }
  }
};

// u4 less its zero point, from -16 to 15, by a table of 32 bf16 (VPERMW, which reads 5 bits of a
// word). Without zero points the fifth bit, which belongs to the next number, does not matter.
struct Int4BF16Dot : Grouped<V, Bf16Dot> {
  struct Scales {
    bool has_zeros;
    __m512i zeros[2];  // in every byte of a column
  };
  static constexpr int kMaxRows = kIntegerRows, kSumsAtOnce = kDecodedSums;
  static constexpr int kLoadSteps = 2, kLoadBytes = 64, kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) {
    const __m512i all_bytes = _mm512_set1_epi32(0x01010101);
    return {task.zeros != nullptr,
            {_mm512_mullo_epi32(zero_points(task, group, 0), all_bytes),
             _mm512_mullo_epi32(zero_points(task, group, 1), all_bytes)}};
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[2][2]) {
    const __m512i codes = _mm512_loadu_si512(p);
    if (!scales.has_zeros) {
      static constexpr IntegerTable kTable(15, -8);
      weights[0][0] = decode(codes, kTable);
      weights[0][1] = decode(_mm512_srli_epi16(codes, 4), kTable);
      weights[1][0] = decode(_mm512_srli_epi16(codes, 8), kTable);
      weights[1][1] = decode(_mm512_srli_epi16(codes, 12), kTable);
      return;
    }
    static constexpr IntegerTable kTable(31, 0);
    const __m512i mask = _mm512_set1_epi8(0x0f);
    const __m512i left = _mm512_sub_epi8(_mm512_and_si512(codes, mask), scales.zeros[0]);
    const __m512i right =
        _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(codes, 4), mask), scales.zeros[1]);
    weights[0][0] = decode(left, kTable);
    weights[0][1] = decode(right, kTable);
    weights[1][0] = decode(_mm512_srli_epi16(left, 8), kTable);
    weights[1][1] = decode(_mm512_srli_epi16(right, 8), kTable);
  }

 private:
  static Weights decode(__m512i words, const IntegerTable& table) {
    return reinterpret_cast<Weights>(
        _mm512_permutexvar_epi16(words, _mm512_load_si512(table.words)));
  }
};

// u8 less its zero point. Bits 0 to 7 (8 to 15) of 2^23 (of 2^15) as a float count its units: 2^23
// (2^15) and the zero point are subtracted exactly. Two such floats, with nothing in their low
// halves, are a pair of bf16.
struct Int8BF16Dot : Grouped<V, Bf16Dot> {
  struct Scales {
    __m512 low[2], high[2];  // 2^23 and 2^15 + the zero points of the halves
  };
  static constexpr int kMaxRows = kIntegerRows;
  static constexpr int kLoadBytes = 64, kMinPrefetchRows = kComputeBoundRows / 2;
  static Scales scales(const PanelTask& task, int64_t group) {
    Scales scales;
    for (int half = 0; half < 2; ++half) {
      const __m512 zeros = _mm512_cvtepi32_ps(zero_points(task, group, half));
      scales.low[half] = _mm512_add_ps(_mm512_set1_ps(0x1p23F), zeros);
      scales.high[half] = _mm512_add_ps(_mm512_set1_ps(0x1p15F), zeros);
    }
    return scales;
  }
  static void load(const std::byte* p, const Scales& scales, Weights (&weights)[1][2]) {
    const __m512i codes = _mm512_loadu_si512(p);
    weights[0][0] = pair(codes, scales.low[0], scales.high[0]);
    weights[0][1] = pair(_mm512_srli_epi32(codes, 16), scales.low[1], scales.high[1]);
  }

 private:
  template <int kByte, int kBase>
  static __m512i decode(__m512i codes, __m512 zero) {
    constexpr int kAndOr = 0xea;  // (codes & byte) | base
    const __m512i placed = _mm512_ternarylogic_epi32(codes, _mm512_set1_epi32(kByte),
                                                     _mm512_set1_epi32(kBase), kAndOr);
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(placed), zero));
  }
  static Weights pair(__m512i codes, __m512 low_zero, __m512 high_zero) {
    constexpr __mmask64 kLowHalves = 0x3333333333333333;
    const __m512i high_to_low = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    const __m512i low = decode<0xff, 0x4b000000>(codes, low_zero),
                  high = decode<0xff00, 0x47000000>(codes, high_zero);
    return reinterpret_cast<Weights>(_mm512_mask_shuffle_epi8(high, kLowHalves, low, high_to_low));
  }
};

}  // namespace

const GemmKernels kAvx512Bf16Kernels =
    with_decoded<V, Bf16Dot, Mx8Dot, Mx4Dot, Fp8Dot, Int4BF16Dot, Int8BF16Dot>(
        make_kernels<V, Bf16Dot, Vnni>("avx512_bf16"));

}  // namespace trimtab
